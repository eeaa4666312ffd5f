// What a training step takes: rehearsed, phase by phase.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "headroom/attention.h"
#include "headroom/loss.h"
#include "headroom/memory/layout.h"
#include "headroom/train/trainer.h"

namespace headroom {

// What is trained, before anybody has said how.
struct TrainingProblem {
  ModelConfig config;
  StepSizes sizes;
  Mask mask;
  OptimizerSettings optimizer;
  DType compute_dtype = DType::f32;
  StatePrecision state = StatePrecision::f32;
  std::int64_t accumulation = 1;
};

// Throws with the value that is wrong.
void validate(const TrainingProblem& problem);

// Tokens between two updates.
[[nodiscard]] std::int64_t step_tokens(const TrainingProblem& problem);

// The loss of its batch, not yet cut into chunks.
[[nodiscard]] LossProblem loss_problem(const TrainingProblem& problem);

// The attention of a layer that has this mask.
[[nodiscard]] AttentionProblem attention_problem(const TrainingProblem& problem, const Mask& mask);

// One run of every phase on a phantom of the device, as one of the strategy's ranks: every allocation, and
// the work of a micro-step and of an update.
struct TrainingRehearsal {
  Ledger ledger;
  std::vector<WorkRecord> micro_step;
  std::vector<WorkRecord> update;
  // Pairs of chunks of one pass of attention over ranks; 0 where one rank has the whole sequence.
  std::array<std::int64_t, 2> pass_pairs{};  // [AttentionKind]
};
[[nodiscard]] TrainingRehearsal rehearse(const TrainingProblem& problem, const Strategy& strategy,
                                         const DeviceDescription& device, int rank = 0);
// The same bytes in a rehearsal whose length does not grow with the number of ranks: of attention over ranks
// it has one slot of each shape (see RingSchedule). That part of its work is not the work of a step.
[[nodiscard]] TrainingRehearsal rehearse_memory(const TrainingProblem& problem, const Strategy& strategy,
                                                const DeviceDescription& device, int rank = 0);
// The same without the phases after the micro-step.
[[nodiscard]] TrainingRehearsal rehearse_micro_step(const TrainingProblem& problem, const Strategy& strategy,
                                                    const DeviceDescription& device, int rank = 0);

// The kernels that the device does not have yet, each with the largest workspace that its row states: bytes
// that are assumed, not those of a kernel. Empty where the step can run.
struct AssumedKernel {
  std::string_view kernel;
  std::int64_t workspace_bytes = 0;

  bool operator==(const AssumedKernel&) const = default;
};
[[nodiscard]] std::vector<AssumedKernel> assumed_kernels(const TrainingRehearsal& rehearsal);

// The same, packed.
[[nodiscard]] Layout rehearse_training(const TrainingProblem& problem, const Strategy& strategy,
                                       const DeviceDescription& device, int rank = 0);

// In words: "keep attention, recompute the rest; loss 384 tokens at a time; MLP 2,048".
[[nodiscard]] std::string describe(const Strategy& strategy);

// What its ranks divide: "4 divide every sequence", "4 in 2 groups divide the batch, ...".
[[nodiscard]] std::string describe_ranks(const Strategy& strategy);

// What the step takes where every layer keeps everything, attention holds its scores and the loss its logits,
// as eager frameworks do: from the same rehearsal and the same families' tables.
[[nodiscard]] std::int64_t naive_training_bytes(const TrainingProblem& problem,
                                                const DeviceDescription& device);

}  // namespace headroom
