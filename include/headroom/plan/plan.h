// A plan: the fastest strategy whose rehearsal fits a budget, and what it takes. Live peak, arena and time
// come from rehearsals of the very step, with the rows that the device will run. Where a device has no kernel
// for an operation yet, the bytes of that operation's workspace are assumed, and the plan lists them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headroom/loss.h"
#include "headroom/memory/layout.h"
#include "headroom/memory/usage.h"
#include "headroom/plan/cost_model.h"
#include "headroom/train/rehearsal.h"

namespace headroom {

// A plan takes some ten rehearsals of the model: deeper ones are refused.
inline constexpr std::int64_t kMaxPlannedLayers = 1024;

// Parts of the strategy that somebody has decided.
struct StrategyPins {
  std::optional<LayerPolicy> layers;
  std::optional<std::int64_t> loss_chunk_tokens;
  std::optional<std::int64_t> mlp_tile_tokens;
  std::optional<std::int64_t> accumulation;
  std::optional<bool> offload_optimizer;
  std::int64_t ranks = 1;
  std::optional<std::int64_t> ring{};  // of them, that divide every sequence
  std::optional<Sharding> sharding{};
  std::optional<LossRanks> loss_ranks{};  // what ranks divide of the loss

  // All of them where nobody has decided: no other number takes less memory.
  [[nodiscard]] std::int64_t ring_ranks() const { return ring.value_or(ranks); }
  // Groups of ranks that divide the sequences of a batch between them.
  [[nodiscard]] std::int64_t data_ranks() const { return ranks / ring_ranks(); }
};

struct PlanRequest {
  TrainingProblem problem;  // sizes.batch: sequences of one update, which micro-steps may share
  DeviceDescription device;
  std::int64_t budget_bytes = 0;
  std::int64_t host_budget_bytes = 0;  // for what is offloaded; 0: nothing is
  StrategyPins pins;
};

// Ranks that take the same memory.
struct RankShare {
  int first_rank = 0;
  std::int64_t ranks = 0;
  std::int64_t tokens = 0;  // of a micro-step's batch, on each of them
  std::int64_t arena_bytes = 0;
};
// What the ranks of an update exchange, by the play of its schedule.
struct RankTraffic {
  std::int64_t sent_bytes = 0;   // by the rank that sends most
  double attention_seconds = 0;  // forward and backward, with what is computed again
  double exposed_seconds = 0;    // of those, what messages add to computing
  double waited_seconds = 0;     // of those, on the rank that waits longest
  double sum_seconds = 0;        // the sums of losses and gradients, and gathering of what ranks divide
  double overlap = 1;            // the share of attention in which no rank has to wait
  double bubbles = 0;            // the share of attention in which ranks do not compute, over all of them
};

// What a step takes of both memories.
struct StepBytes {
  std::int64_t arena_bytes = 0;  // of the device
  std::int64_t host_bytes = 0;
};

// One strategy, rehearsed. Over ranks, bytes are those of the rank that takes most and time is that of the
// slowest.
struct PlannedStep {
  Strategy strategy;
  std::int64_t live_peak_bytes = 0;  // of the device
  std::int64_t arena_bytes = 0;
  std::int64_t host_bytes = 0;
  double seconds = 0;                            // of an update with all its micro-steps
  std::vector<std::int64_t> rank_arena_bytes{};  // [rank]
  std::vector<RankShare> rank_shares{};
  RankTraffic traffic{};
  std::vector<AssumedKernel> assumed{};

  [[nodiscard]] StepBytes bytes() const { return {arena_bytes, host_bytes}; }
};

// A way in which ranks may divide a step: what of it the search has chosen, and how long it would take.
struct RankDivision {
  std::int64_t ring_ranks = 1;
  std::int64_t head_group = 1;
  Sharding sharding = Sharding::none;
  LossRanks loss_ranks = LossRanks::tokens;
  std::optional<double> seconds{};  // of the fastest strategy that fits by its bound; nothing where none does
};

struct Plan {
  bool fits = false;
  PlannedStep step;  // the fastest that fits; where none does, the one that is least over
  Layout layout;
  std::vector<RankDivision> divisions{};  // that were compared, the chosen one first, then the fastest
  std::int64_t candidates = 0;            // strategies in the space
  std::int64_t rehearsed = 0;             // of them, whole
};

// How a layer's own memory is cut down; see Strategy.
struct LayerCut {
  std::int64_t mlp_tile_tokens = 0;
  bool projections_again = false;

  bool operator==(const LayerCut&) const = default;
};

// What the search chooses from: every combination, those that split least first.
struct SearchSpace {
  std::vector<LayerPolicy> policies;
  std::vector<std::int64_t> accumulations;
  std::vector<LossChunks> loss_chunks;
  std::vector<LayerCut> layer_cuts;
  std::vector<bool> optimizer_offloads;
};
[[nodiscard]] SearchSpace search_space(const PlanRequest& request);

// One strategy, rehearsed and packed; over ranks, as one of each class that takes the same.
[[nodiscard]] PlannedStep plan_step(const PlanRequest& request, const Strategy& strategy,
                                    const CostModel& costs, Layout* layout = nullptr);

// A CPU has one memory, unless some of it is set apart for what is offloaded.
[[nodiscard]] bool one_memory(const PlanRequest& request);

// What of a step counts against the device's budget.
[[nodiscard]] std::int64_t budgeted_bytes(const PlanRequest& request, const StepBytes& step);
[[nodiscard]] inline std::int64_t budgeted_bytes(const PlanRequest& request, const PlannedStep& step) {
  return budgeted_bytes(request, step.bytes());
}

// Bytes by which it does not fit its budgets.
[[nodiscard]] std::int64_t bytes_over(const PlanRequest& request, const StepBytes& step);
[[nodiscard]] inline std::int64_t bytes_over(const PlanRequest& request, const PlannedStep& step) {
  return bytes_over(request, step.bytes());
}

[[nodiscard]] inline bool fits(const PlanRequest& request, const StepBytes& step) {
  return bytes_over(request, step) == 0;
}
[[nodiscard]] inline bool fits(const PlanRequest& request, const PlannedStep& step) {
  return fits(request, step.bytes());
}

// Whether what lives as long as a run on one rank is within the device's budget. Where it is not, no strategy
// fits. The request has to pin one rank.
[[nodiscard]] bool run_fits(const PlanRequest& request, const CostModel& costs);

// Finds what trying the whole space would find, over all ways in which the ranks may divide a step; past some
// dozens of strategies that fail (4,096 layers of them) those that would barely fit are passed over.
[[nodiscard]] Plan make_plan(const PlanRequest& request, const CostModel& costs);

// The plan of a run whose batch and accumulation are decided: what train reserves.
struct TrainingFit {
  Strategy strategy;              // the fastest that fits; where none does, the one that is least over
  Layout layout;                  // of the rank that takes most
  std::int64_t needed_bytes = 0;  // that count against the device's budget; on a CPU with the host staging
  bool fits = false;
  std::vector<RankDivision> divisions{};  // as the plan has them
};
// The request's problem is that of a run: `sizes.batch` are the sequences of a micro-step, `accumulation` of
// which make an update. Its pins may leave `accumulation` out.
[[nodiscard]] TrainingFit fit_training(PlanRequest request, const CostModel& costs);

// What was chosen for the ranks, and what else was compared, in the words of the flags that pin it: "--ring 4
// --shard none --loss-ranks tokens, 1.2 s a step; --ring 4 --shard full --loss-ranks tokens 1.4 s". Empty
// where there was nothing to choose.
[[nodiscard]] std::string describe_choice(const std::vector<RankDivision>& divisions);

// The largest number of tokens of a sequence, a multiple of `step`, for which one of the strategies that take
// least fits; 0: none.
[[nodiscard]] std::int64_t largest_context(const PlanRequest& request, const CostModel& costs,
                                           std::int64_t step = 256);

// The smallest number of ranks, 1 to `most`, over which one of the strategies that take least fits, as a
// ring; nothing where none does. What ranks do not divide of the training state, each of them has whole.
[[nodiscard]] std::optional<std::int64_t> smallest_ranks(const PlanRequest& request, const CostModel& costs,
                                                         std::int64_t most);

// A single change to a plan.
struct Change {
  std::string what;              // "recompute 4 layers more"
  std::int64_t saved_bytes = 0;  // of what counts against the device's budget
  double added_seconds = 0;
  bool fits = false;
};
// Changes that save memory, those that cost least time per byte first. Of models of hundreds of layers not
// all are tried.
[[nodiscard]] std::vector<Change> what_if(const PlanRequest& request, const Plan& plan,
                                          const CostModel& costs);

// A step in a few lines, as people look at it.
enum class StepStage : std::uint8_t { parameters, embedding, first_layer, layers, loss, backward, optimizer };
[[nodiscard]] std::string_view name(StepStage stage);

struct StepStageUsage {
  StepStage stage = StepStage::parameters;
  std::int64_t live_bytes = 0;  // when it ends
  std::int64_t peak_bytes = 0;  // the most that was held in it
  CategoryBytes at_peak{};
};
// Returns the stages that the ledger has, in the order of StepStage.
[[nodiscard]] std::vector<StepStageUsage> step_stages(const Ledger& ledger);
// What lives as long as the run: weights, master weights, gradients, first moments, second moments.
struct StateBytes {
  std::string tensor;
  Space space = Space::device;
  std::int64_t bytes = 0;
};
// Returns those that the ledger has, in the order in which they are allocated.
[[nodiscard]] std::vector<StateBytes> state_bytes(const Ledger& ledger);
// Returns the stage that the time of a piece of work is counted in; `layers` is without the first layer.
// Returns nothing for work that is in none of them.
[[nodiscard]] std::optional<StepStage> step_stage_of(Phase phase, const StagePath& path);

}  // namespace headroom
