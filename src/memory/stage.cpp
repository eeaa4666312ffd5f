#include "headroom/memory/stage.h"

#include <fmt/format.h>

#include <algorithm>

namespace headroom {

std::string_view name(Phase phase) {
  constexpr std::array<std::string_view, kPhaseCount> kNames = {"load", "micro-step", "update",  "evaluate",
                                                                "save", "gather",     "forward", "backward",
                                                                "step", "peak",       "compare"};
  return kNames[static_cast<std::size_t>(phase)];
}

std::string_view name(StageKind kind) {
  constexpr std::array<std::string_view, kStageKindCount> kNames = {
      "load",       "inputs", "forward", "backward", "embedding", "rope",      "layer", "attention",
      "over ranks", "mlp",    "norm",    "loss",     "again",     "optimizer", "step",  "line"};
  return kNames[static_cast<std::size_t>(kind)];
}

bool StagePath::inside(const StagePath& outer) const {
  return depth_ >= outer.depth_ && std::ranges::equal(stages().first(outer.depth_), outer.stages());
}

std::string StagePath::text() const {
  std::string text;
  for (const Stage& stage : stages()) {
    if (!text.empty()) text += '/';
    text += name(stage.kind);
    if (stage.index >= 0) text += fmt::format(" {}", stage.index);
  }
  return text;
}

}  // namespace headroom
