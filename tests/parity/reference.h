// Files of reference/ and drawn/: what transformers made of a model, and how far Headroom is from it.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "headroom/model.h"

namespace headroom {

// The checked-in one, or the one that HEADROOM_PARITY names.
inline std::filesystem::path parity_folder() {
  const char* given = std::getenv("HEADROOM_PARITY");
  return given != nullptr ? given : HEADROOM_PARITY_FOLDER;
}

// The models in a folder; none where there is no folder.
inline std::vector<std::string> models_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline std::vector<float> floats(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* entry = file.find(name);
  EXPECT_NE(entry, nullptr) << name;
  std::vector<float> values(static_cast<std::size_t>(entry->shape.elements()));
  file.read(*entry, DType::f32, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

struct Difference {
  double error = 0;  // length of the difference
  double norm = 0;   // of what is expected
};

inline Difference difference(const TensorView& ours, const std::vector<float>& expected, double scale = 1) {
  Difference result;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double e = expected[i];
    result.error += std::pow(scale * static_cast<double>(ours.data<float>()[i]) - e, 2);
    result.norm += e * e;
  }
  return {std::sqrt(result.error), std::sqrt(result.norm)};
}

// The largest errors of the whole run by what they are of, printed when it ends.
class WorstErrors : public testing::Environment {
 public:
  static void note(const std::string& what, double relative, const std::string& where) {
    Worst& worst = all()[what];
    if (relative >= worst.relative || std::isnan(relative)) worst = {relative, where};
  }
  void TearDown() override {
    for (const auto& [what, worst] : all()) {
      fmt::print("worst relative error of {}: {:.2e} ({})\n", what, worst.relative, worst.where);
    }
  }

 private:
  struct Worst {
    double relative = 0;
    std::string where = {};
  };
  static std::map<std::string, Worst>& all() {
    static std::map<std::string, Worst> errors;
    return errors;
  }
};

inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return std::sqrt(sum);
}

}  // namespace headroom
