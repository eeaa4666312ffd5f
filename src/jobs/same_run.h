// What processes that are ranks of one training run have to agree on before anything is reserved or written.
// All of them call these functions together.
#pragma once

#include "headroom/jobs/train.h"

namespace headroom {

// Throws on every rank where an option was given to one of them and not, or differently, to another, naming
// both ranks and the option. Budgets and threads may differ: ranks agree on the smallest.
void check_same_options(const TrainingOptions& options, Communicator& ranks);

// The threads of each rank on a CPU: the fewest that a rank has.
[[nodiscard]] int agreed_threads(const TrainingOptions& options, int ranks_here, Communicator& ranks);

// Throws on every rank unless they train one model: every setting, the weights or the checkpoint that they
// begin with by name and contents, and the layout of the rank that takes most.
void check_same_run(const TrainingPlan& plan, Communicator& ranks);

}  // namespace headroom
