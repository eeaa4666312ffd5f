// Rehearsals of single strategies, which every part of a plan is made of.
#pragma once

#include <cstdint>
#include <optional>

#include "headroom/plan/plan.h"
#include "plan/rank_plan.h"
#include "plan/uniform.h"

namespace headroom {

// What a rehearsal of one strategy is for.
struct StepQuestion {
  const PlanRequest& request;
  const Strategy& strategy;
  const CostModel& costs;
  RankPlan& ranks;
  std::int64_t most_bytes;            // more than this need not be packed
  std::optional<int> only_rank = {};  // in place of a rank of each class
  // False: the rank that takes most is all that counts. Seconds are without attention over ranks, and classes
  // that are outweighed are left out.
  bool timed = true;
};
// The rank that takes most of all, unless one before it is over `most_bytes` already.
[[nodiscard]] PlannedStep rehearsed_step(const StepQuestion& of, Layout* layout);

// A lower bound of what a strategy takes whose micro-step takes at least so many bytes above those of the
// run.
[[nodiscard]] StepBytes at_least(const LayerPolicy& policy, const LayerCosts& layers, const RunCosts& run,
                                 std::int64_t micro_step_bytes);

// How loss and layers of a strategy are cut. A rank has no more tokens than its share of a micro-step's
// batch.
void set_cut(Strategy& strategy, const LossChunks& chunks, const PlanRequest& request);
void set_cut(Strategy& strategy, const LayerCut& cut, const PlanRequest& request);

}  // namespace headroom
