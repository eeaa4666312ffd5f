// Phases and stages: where in a program an allocation or a piece of work belongs. They are types, so a
// misspelt one does not compile, and code that reads a ledger compares stages instead of parsing names.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "headroom/core/error.h"

namespace headroom {

// What a program repeats as a whole. A run's phase has to have been rehearsed.
enum class Phase : std::uint8_t {
  load,
  micro_step,  // one batch, forward and backward
  update,
  evaluate,
  save,
  gather,  // save, where ranks divide what is saved
  forward,
  backward,
  step,     // of a program that has one
  peak,     // a measurement of the machine, beside a benchmark's own phases
  compare,  // results with the truth
};
inline constexpr int kPhaseCount = 11;
[[nodiscard]] std::string_view name(Phase phase);

// Parts of a phase; they nest.
enum class StageKind : std::uint8_t {
  load,
  inputs,
  forward,
  backward,
  embedding,
  rope,
  layer,  // numbered from 0
  attention,
  over_ranks,  // the part of attention that ranks divide
  mlp,
  norm,
  loss,
  again,  // what backward makes once more
  optimizer,
  step,         // of several in one phase, numbered from 0
  source_line,  // of a program whose text is quoted, numbered from 0
};
inline constexpr int kStageKindCount = 16;
[[nodiscard]] std::string_view name(StageKind kind);

struct Stage {
  StageKind kind = StageKind::forward;
  std::int64_t index = -1;  // below 0: a stage without a number

  auto operator<=>(const Stage&) const = default;
};

// The open stages at one moment, the outermost first; none: the phase itself.
class StagePath {
 public:
  static constexpr std::size_t kMaxDepth = 8;

  constexpr StagePath() = default;
  constexpr StagePath(std::initializer_list<Stage> stages) {
    for (const Stage& stage : stages) open(stage);
  }

  // Opens a stage inside those that are open. Throws where they would nest deeper than kMaxDepth.
  constexpr void open(const Stage& stage) {
    if (depth_ == kMaxDepth) fail(ErrorKind::runtime, "stages nest deeper than {}", kMaxDepth);
    stages_[depth_++] = stage;
  }
  [[nodiscard]] std::span<const Stage> stages() const { return std::span(stages_).first(depth_); }
  [[nodiscard]] std::size_t depth() const { return depth_; }
  [[nodiscard]] bool empty() const { return depth_ == 0; }
  // Whether this is that stage or one inside it.
  [[nodiscard]] bool inside(const StagePath& outer) const;
  [[nodiscard]] std::string text() const;  // forward/layer 3/attention

  bool operator==(const StagePath&) const = default;

 private:
  std::array<Stage, kMaxDepth> stages_{};
  std::size_t depth_ = 0;
};

}  // namespace headroom
