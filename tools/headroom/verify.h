// What `headroom verify attention` and `headroom verify loss` share: options, results by implementation and
// group, and how they are shown.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"
#include "headroom/core/kernel_family.h"

namespace headroom {

struct VerifyOptions {
  std::string device = "cpu";
  std::string implementation;
  int threads = 0;
  std::size_t every = 1;  // of so many cases one
  bool json = false;
};

// --device, --impl, --threads, --every, --json. `names` are the implementations as --help lists them.
void add_verify_options(Command app, VerifyOptions& options, const std::string& names);

class Verification {
 public:
  // What is verified, and how many cases there are.
  Verification(std::string what, std::size_t cases) : what_(std::move(what)), cases_(cases) {}

  // One case of an implementation: refused, or run with an error of `worst` times what is allowed.
  void refused(std::string_view implementation, const std::string& reason);
  void ran(std::string_view implementation, const std::string& group, const std::string& name, double worst);

  // Text or JSON, of which `more` is part; 0, or 1 where a case failed.
  int report(const VerifyOptions& options, const nlohmann::ordered_json& more, std::ostream& out) const;

 private:
  struct Group {
    int cases = 0;
    int failed = 0;
    double worst = 0;  // error over what is allowed
    std::string worst_case;
  };
  struct OfImplementation {
    std::string name;
    int served = 0;
    std::map<std::string, Group> groups;
    std::vector<std::string> refusals;  // different reasons
  };
  OfImplementation& of(std::string_view implementation);

  std::string what_;
  std::size_t cases_;
  std::vector<OfImplementation> results_;
};

// The names to verify: all but the reference, or the one that was asked for.
template <class Row>
[[nodiscard]] std::vector<std::string> names_to_verify(std::span<const Row> table, std::string_view wanted) {
  std::vector<std::string> names;
  std::string all;
  for (const Row& row : table.first(table.size() - 1)) {
    all += fmt::format("{}{}", all.empty() ? "" : ", ", row.name);
    if (wanted.empty() || row.name == wanted) names.emplace_back(row.name);
  }
  check(!names.empty(), "implementation '{}' is unknown; use one of {}", wanted, all);
  return names;
}

}  // namespace headroom
