// The training loop between a plan and a checkpoint.
#pragma once

#include "headroom/jobs/train.h"

namespace headroom {

// As train() says; the folder has to be there, and nobody else may write to it.
[[nodiscard]] TrainingResult run_training(const TrainingPlan& plan, Backend& backend,
                                          const TrainingObserver& observer);

}  // namespace headroom
