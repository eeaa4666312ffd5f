// The training loop between a plan and a checkpoint.
#pragma once

#include "headroom/jobs/train.h"

namespace headroom {

// As train() says, as one rank; the folder has to be there, and nobody else may write to it. Without a
// communicator it is the only rank.
[[nodiscard]] TrainingResult run_training(const TrainingPlan& plan, Backend& backend,
                                          Communicator* communicator, const TrainingObserver& observer);

}  // namespace headroom
