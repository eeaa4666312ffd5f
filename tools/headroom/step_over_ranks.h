// A training step over ranks for `headroom bench step`: how long it takes over a link, and how long a plan
// says it takes. Ranks are threads of this process that share its cores, or streams of one GPU.
#pragma once

#include "bench.h"
#include "headroom/jobs.h"
#include "ring_measure.h"

namespace headroom {

// Of the slowest rank.
struct StepTimes {
  double milliseconds = 0;         // forward, loss and backward
  double update_milliseconds = 0;  // sums of gradients, clipping and AdamW

  [[nodiscard]] double whole() const { return milliseconds + update_milliseconds; }
};

struct StepOverRanks {
  StepTimes alone;  // over a link as fast as memory
  double predicted_alone_milliseconds = 0;
  StepTimes linked;  // over the link that was asked for; as alone where none was
  double predicted_milliseconds = 0;
  LinkModel link{};
};

// Plans predict with the rates of kernels that the ranks reach together over a link as fast as memory: alone
// a rank has caches and memory for itself.
[[nodiscard]] StepOverRanks measure_step(const TrainingProblem& problem, const TrainingFit& fit,
                                         const PlanRequest& request, const RunDevice& device,
                                         const BenchOptions& options, const RingLink& link);

}  // namespace headroom
