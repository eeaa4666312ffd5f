// The one shape of a kernel family: an ordered table of implementations, the readable reference last, and one
// function that picks the first that serves the problem. supports and workspace_bytes are pure functions of
// problem and device description, so a machine without a GPU picks what the GPU will pick. Kernels never
// allocate.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headroom/core/device.h"
#include "headroom/core/error.h"
#include "headroom/core/stream.h"
#include "headroom/core/tensor_view.h"

namespace headroom {

enum class Pass : std::uint8_t { forward, backward };

// Yes, or no with a reason that a person can read.
class [[nodiscard]] Support {
 public:
  static Support yes() { return Support({}); }
  static Support no(std::string reason) { return Support(std::move(reason)); }

  explicit operator bool() const { return reason_.empty(); }
  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  explicit Support(std::string reason) : reason_(std::move(reason)) {}
  std::string reason_;
};

// Problem: sizes and options, no pointers. Forward and Backward: the views each pass reads and writes.
template <class Problem, class Forward, class Backward>
struct Implementation {
  std::string_view name;
  Support (*supports)(const Problem&, const DeviceDescription&);
  std::int64_t (*workspace_bytes)(const Problem&, const DeviceDescription&, Pass);
  std::int64_t (*saved_bytes)(const Problem&);  // kept from forward to backward, besides inputs and results
  void (*forward)(const Problem&, const Forward&, TensorView workspace, const Stream&);
  void (*backward)(const Problem&, const Backward&, TensorView workspace, const Stream&);
  bool only_when_named = false;  // never chosen: for those that are less exact than the others
};

struct Refusal {
  std::string_view implementation;
  std::string reason;
};

// The implementation that serves, null where none does, and why those before it do not.
template <class Row>
struct Choice {
  const Row* implementation = nullptr;
  std::vector<Refusal> refusals;
};

// The first row of the table that supports the problem; with a pinned name, that row alone is asked.
template <class Row, class Problem>
[[nodiscard]] Choice<Row> choose(std::span<const Row> table, const Problem& problem,
                                 const DeviceDescription& device, std::string_view pinned = {}) {
  Choice<Row> choice;
  std::string names;
  for (const Row& row : table) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
    if (!pinned.empty() && row.name != pinned) continue;
    if (pinned.empty() && row.only_when_named) {
      choice.refusals.push_back({row.name, "runs only where it is named"});
      continue;
    }
    if (Support support = row.supports(problem, device)) {
      choice.implementation = &row;
      return choice;
    } else {
      choice.refusals.push_back({row.name, support.reason()});
    }
  }
  check(pinned.empty() || !choice.refusals.empty(), "implementation '{}' is unknown; there are {}", pinned,
        names);
  return choice;
}

// The implementation that serves; where none does, an error that says why each does not.
template <class Row, class Problem>
[[nodiscard]] const Row& pick(std::span<const Row> table, const Problem& problem,
                              const DeviceDescription& device, std::string_view pinned,
                              std::string_view family) {
  const Choice<Row> choice = choose(table, problem, device, pinned);
  if (choice.implementation != nullptr) return *choice.implementation;
  std::string reasons;
  for (const Refusal& refusal : choice.refusals) {
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", refusal.implementation, refusal.reason);
  }
  fail(ErrorKind::input, "no implementation of {} serves this problem: {}", family, reasons);
}

}  // namespace headroom
