// A sample with memory of its own, poisoned before it is written, and a folder for files that goes with it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/temporary_folder.h"
#include "headroom/train.h"

namespace headroom {

struct Sample {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> labels;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> document_starts;

  bool operator==(const Sample&) const = default;
};

inline Sample poisoned_sample(const Data& data, const DataOptions& options) {
  const std::vector<std::int32_t> row(static_cast<std::size_t>(options.context), -7777);
  const auto starts = static_cast<std::size_t>(data.documents() ? options.max_documents + 1 : 0);
  return {.tokens = row,
          .labels = row,
          .positions = row,
          .document_starts = std::vector<std::int32_t>(starts, -7777)};
}

inline Samples room_of(Sample& sample) {
  return {.tokens = sample.tokens,
          .labels = sample.labels,
          .positions = sample.positions,
          .document_starts = sample.document_starts};
}

inline Sample sample_of(const Data& data, const DataOptions& options, std::int64_t index) {
  Sample sample = poisoned_sample(data, options);
  data.fill(index, room_of(sample));
  return sample;
}

class Folder {
 public:
  [[nodiscard]] std::string path() const { return folder_.path().string(); }
  std::string write(std::string_view name, std::string_view bytes) const {
    const std::string path = (folder_ / name).string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  template <class T>
  std::string write_tokens(std::string_view name, const std::vector<T>& tokens) const {
    return write(name, {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(T)});
  }

 private:
  TemporaryFolder folder_;
};

// The error that opening gives, or that a sample gives; empty where there is none.
inline std::string refusal(std::string_view spec, const DataOptions& options) {
  try {
    const Data data = Data::open(spec, options);
    return {};
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input) << error.what();
    EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << error.what();
    return error.what();
  }
}

inline std::string refusal(const Data& data, const DataOptions& options, std::int64_t index) {
  try {
    static_cast<void>(sample_of(data, options, index));
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace headroom
