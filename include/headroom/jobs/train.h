// A training run from its options to its result, as `headroom train` does it, on one rank or several: finds
// model, data and device, chooses the strategy that fits the budget, goes on from a checkpoint, trains,
// saves. plan_training() opens the device, runs nothing and leaves no trace; train() runs what was planned.
// Nothing here prints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "headroom/core/files.h"
#include "headroom/jobs/run_device.h"
#include "headroom/memory/communicator.h"
#include "headroom/plan/implementations.h"
#include "headroom/plan/plan.h"
#include "headroom/plan/question.h"
#include "headroom/report/page.h"
#include "headroom/train.h"

namespace headroom {

struct TrainingOptions {
  std::string model;                            // a built-in name (random weights), or a Hugging Face folder
  std::string data;                             // as Data::open() reads it
  std::int64_t context = 0;                     // tokens of a sequence
  std::int64_t batch = 1;                       // sequences at a time
  std::int64_t accumulation = 1;                // batches per update
  std::optional<std::int64_t> max_documents{};  // pieces of documents in a sequence; without it 256
  bool bytes = false;                           // bytes of the data are tokens
  std::optional<std::int64_t> budget_bytes{};   // of each rank; without it: its share of what is free now
  std::optional<std::int64_t> host_budget_bytes{};  // as RunDeviceOptions has it
  PinOptions pins{};                                // parts of the strategy; `accumulation` is not read.
                                                    // `ranks` are threads of this process
  std::optional<std::string> link{};                // between ranks, by which the planner chooses what they
  std::optional<double> latency_seconds{};          // divide; without it memory, or a network between hosts
  std::string attention = "causal";                 // as parse_mask() reads it
  std::optional<std::string> dtype{};               // f32 or bf16; without it: what is fast on the device
  std::string state = "f32";                        // of weights, gradients and moments: f32, bf16 or 8bit
  OptimizerSettings optimizer{};                    // warmup_steps is not read
  std::optional<std::int64_t> warmup{};             // steps; without it a tenth of them, at most 100
  std::string out;                                  // folder for checkpoints and metrics.jsonl
  std::uint64_t seed = 0;                           // of weights and data
  std::int64_t save_every = 0;                      // steps between checkpoints; 0: at the end alone
  std::int64_t keep_last = 2;                       // checkpoints to keep
  bool resume = false;                              // go on from the last checkpoint in `out`
  bool overwrite = false;                      // begin anew: replace the checkpoints and metrics in `out`
  std::vector<std::string> devices = {"cpu"};  // that the ranks of a host take in turn
  int threads = 0;                             // of each rank; 0: every core, or its share of them
  Seconds rank_timeout = kDefaultTimeout;  // for which a rank waits for another, where the ranks are threads
};

// This process, where it is one rank of several that were started as processes.
struct RankProcess {
  Communicator* communicator = nullptr;  // without one the ranks are threads of this process
  int local_rank = 0;                    // among those of its host
  int local_count = 1;                   // of them
};

struct TrainingPlan {
  TrainingOptions options;
  TrainingProblem problem{};
  std::optional<std::filesystem::path> weights{};     // the folder of the model; without it they are random
  std::vector<Setting> settings{};                    // what a resumed run has to agree on
  std::optional<std::filesystem::path> checkpoint{};  // to go on from; without it the run begins at step 1
  Data data;
  RunDevice device;
  TrainingFit fit{};
  std::vector<StepImplementation> implementations{};
  std::int64_t naive_bytes = 0;          // with scores and logits held
  std::int64_t process_bytes = 0;        // resident when the plan was made, outside the budget
  std::optional<std::string> warning{};  // about the dtype
  std::vector<std::string> notes{};      // about the model's files and a resumed run
  std::optional<FolderLock> lock{};      // on `out`, where the folder was there already and this is rank 0
  Communicator* launched = nullptr;      // of this process, where it is one rank of several

  [[nodiscard]] std::int64_t ranks() const { return fit.strategy.ranks(); }
  // Whether this process has rank 0, which prints and writes all files.
  [[nodiscard]] bool leads() const { return launched == nullptr || launched->ranks().rank == 0; }
};

// Throws where an option is wrong, where the folder holds another run, and, as an error of kind memory, where
// nothing fits the budget. A process that is one rank of several hands in its communicator, and all of them
// call this: the smallest budget of a rank is that of all. An error of one ends the others.
[[nodiscard]] TrainingPlan plan_training(const TrainingOptions& options, const RankProcess& process = {});

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
  std::vector<std::int64_t> rank_live_peak_bytes{};  // [rank]
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
  std::vector<std::int64_t> rank_live_peak_bytes;  // [rank]
  bool interrupted = false;
  std::filesystem::path checkpoint;  // the last in the folder; empty where there is none
  std::vector<std::string> notes;    // what went wrong and did not end the run, a line each

  [[nodiscard]] bool finished_a_step() const { return last_step >= first_step; }
};

// Called by the thread that trains, of rank 0 alone. Where processes are ranks, stop() is asked in each.
struct TrainingObserver {
  std::function<void()> began = [] {};  // the folder is the run's own, and nothing is reserved yet
  std::function<void(const StepReport&)> step = [](const StepReport&) {};  // after each
  std::function<bool()> stop = [] { return false; };                       // whether to save and leave
};

// Trains until the last step or until stop() says so, which is asked before every micro-step; then saves. A
// step that was stopped half way is dropped: the checkpoint is that of the last step that was finished, and
// a run that goes on from it has the bits of one that was never stopped. A loss, a gradient, or a weight to
// be saved that is not finite is an error that names step and tensor, and leaves the last checkpoint as it
// is. So is a folder `out` that is removed or replaced meanwhile; where it is missing at first, it is made.
// Samples that cannot be read and a line that cannot be added to metrics.jsonl end the run with an error too,
// after what was trained is saved.
// Ranks that are processes compare their options before they plan, and their plans before they reserve
// anything. An error of one rank ends all of
// them, and the checkpoints stay as they are.
[[nodiscard]] TrainingResult train(TrainingPlan& plan, const TrainingObserver& observer = {});

// Whether a run in the folder `out` writes, replaces or removes the file: nobody else should.
[[nodiscard]] bool is_file_of_run(const std::string& file, const std::string& out);

// The keys are in docs/cli.md.
[[nodiscard]] std::string json(const TrainingPlan& plan, const TrainingResult& result);

// The plan, the memory of a micro-step, and the loss. Without a result: before the first step. The loss is
// read from the run's metrics.jsonl, so a resumed run shows all of it.
[[nodiscard]] Page training_page(const TrainingPlan& plan, const std::optional<TrainingResult>& result);

}  // namespace headroom
