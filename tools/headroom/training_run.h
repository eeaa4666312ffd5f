// One training run: the loop between a plan that fits and a checkpoint. What it reports goes to the listener;
// files go below the folder of the run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "headroom/plan.h"
#include "headroom/train.h"

namespace headroom {

struct TrainingSetup {
  TrainingProblem problem;
  std::optional<std::filesystem::path> weights;  // a Hugging Face folder; without it they are random
  std::filesystem::path out;
  std::vector<Setting> settings;                    // what a resumed run has to agree on
  std::optional<std::filesystem::path> checkpoint;  // to go on from; without it the run begins at step 1
  bool overwrite = false;                           // a run that begins removes the checkpoints in `out`
  std::uint64_t seed = 0;
  std::int64_t save_every = 0;  // steps; 0: at the end alone
  std::int64_t keep_last = 2;
};

struct StepReport {
  std::int64_t step = 0;
  std::optional<double> loss{};  // the mean over the labels; without one nothing changes
  std::int64_t labels = 0;       // of this step
  double learning_rate = 0;
  std::optional<double> grad_norm{};  // nothing where there is no loss
  std::int64_t tokens = 0;            // since the run first began
  double seconds = 0;                 // since this process began to train
  double tokens_per_second = 0;       // of the step alone, without saving or reporting
  std::int64_t live_bytes = 0;
  std::int64_t live_peak_bytes = 0;
};

struct TrainingResult {
  std::int64_t first_step = 1;  // of this process
  std::int64_t last_step = 0;
  std::optional<double> first_loss;  // of the first and the last step that had a label
  std::optional<double> last_loss;
  std::int64_t steps_without_labels = 0;
  std::optional<double> held_out_loss;  // on samples that were not trained on, where the source never ends
  double seconds = 0;
  std::int64_t live_peak_bytes = 0;
  bool interrupted = false;
  std::filesystem::path checkpoint;  // the last in the folder; empty where there is none
  std::vector<std::string> notes;    // what went wrong and did not end the run, a line each

  [[nodiscard]] bool finished_a_step() const { return last_step >= first_step; }
};

// Trains until the last step or until stop() says so, which is asked before every micro-step; then saves. A
// step that was stopped half way is dropped: the checkpoint is that of the last step that was finished, and
// a run that goes on from it has the bits of one that was never stopped. A loss, a gradient, or a weight to
// be saved that is not finite is an error that names step and tensor, and leaves the last checkpoint as it
// is. So is a folder `out` that is removed or replaced meanwhile. A line that cannot be added to
// metrics.jsonl ends the run with an error too, after what was trained is saved. `out` has to be there, and
// nobody else may write to it.
[[nodiscard]] TrainingResult run_training(const TrainingSetup& setup, const TrainingFit& fit,
                                          const Data& data, Backend& backend,
                                          const std::function<void(const StepReport&)>& listen,
                                          const std::function<bool()>& stop);

}  // namespace headroom
