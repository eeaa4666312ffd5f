// The one shape of a kernel family: an ordered table of rows, and one function that picks the first row that
// serves the problem. supports and workspace_bytes are pure functions of problem and device description, so a
// machine without a GPU picks what the GPU will pick. Kernels never allocate.
//
// A row may state its bytes before its kernel exists: then its kernel is null. It is planned with, listed as
// assumed, and refused when it would run.
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
  // Returns the bytes that backward keeps between calls for the same queries, 0 where it cannot; null: never.
  std::int64_t (*open_bytes)(const Problem&) = nullptr;

  [[nodiscard]] bool assumed() const { return forward == nullptr; }
};

// A row of an operation that has one pass. Call: the views that it reads and writes, with its settings; their
// shapes and dtypes are known in a rehearsal too.
template <class Call>
struct OperationRow {
  std::string_view name;
  Support (*supports)(const Call&, const DeviceDescription&);
  void (*run)(const Call&, TensorView workspace, const Stream&);
  // What it needs for this call or any smaller one; null: nothing.
  std::int64_t (*workspace_bytes)(const Call&, const DeviceDescription&) = nullptr;
  bool only_when_named = false;

  [[nodiscard]] bool assumed() const { return run == nullptr; }
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
  for (const Row& row : table) {
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
  if (!pinned.empty() && choice.refusals.empty()) {
    std::string names;
    for (const Row& row : table) names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
    fail(ErrorKind::input, "implementation '{}' is unknown; there are {}", pinned, names);
  }
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
