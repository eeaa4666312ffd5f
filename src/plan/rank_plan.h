// What a plan over ranks needs of their schedules: how long attention takes, and which ranks take the same
// memory. Both take a pass over the whole schedule, so they are found once for each size of a batch.
#pragma once

#include <array>
#include <map>

#include "headroom/parallel.h"
#include "headroom/plan/plan.h"

namespace headroom {

// Times of attention over ranks, for the kinds of attention that layers have; zeros on one rank.
using RankedAttention = std::array<AttentionTime, 2>;  // [AttentionKind]

class RankPlan {
 public:
  RankPlan(const CostModel& costs, DeviceDescription device) : costs_(costs), device_(std::move(device)) {}

  // Of a micro-step under a strategy.
  [[nodiscard]] const RankedAttention& attention(const TrainingProblem& micro_step, const Strategy& strategy);
  [[nodiscard]] const RankClasses& classes(const TrainingProblem& micro_step, const Strategy& strategy);

 private:
  // Batch, context, ranks of a ring, groups of them, head group, sharding, what ranks divide of the loss.
  using Key = std::array<std::int64_t, 7>;
  static constexpr std::size_t kStateKey = 5;
  static constexpr std::size_t kLossKey = 6;
  [[nodiscard]] static Key key_of(const TrainingProblem& micro_step, const Strategy& strategy);
  // Attention is the same however the state and the loss are divided.
  [[nodiscard]] static Key attention_key_of(const TrainingProblem& micro_step, const Strategy& strategy);
  // What decides the memory of attention, by the place of a rank in its ring; empty without one.
  [[nodiscard]] const std::vector<RankMemory>& attention_memory(const TrainingProblem& micro_step,
                                                                const Strategy& strategy);

  const CostModel& costs_;
  DeviceDescription device_;
  std::map<Key, RankedAttention> attention_;
  std::map<Key, std::vector<RankMemory>> attention_memory_;
  std::map<Key, RankClasses> classes_;
};

// Seconds of the records of a rehearsal. Of attention over ranks the whole pass was played: the records of
// its pairs share that time equally, and its other records are 0.
class RecordSeconds {
 public:
  // All of them have to outlive this.
  RecordSeconds(const CostModel& costs, const ModelConfig& config, const TrainingRehearsal& rehearsal,
                const RankedAttention& attention)
      : costs_(costs), config_(config), rehearsal_(rehearsal), attention_(attention) {}

  [[nodiscard]] double of(const WorkRecord& record) const;
  // Of a phase, played.
  [[nodiscard]] double of(Phase phase, std::span<const WorkRecord> records) const;
  // What the ranks of a step exchange and wait for, with so many micro-steps.
  [[nodiscard]] RankTraffic traffic(std::int64_t accumulation) const;

 private:
  // The part of a pass over ranks that a record is, and of which kind of attention; nothing of other records.
  struct PartOfPass {
    double part = 0;
    const PassTime* pass = nullptr;
  };
  [[nodiscard]] std::optional<PartOfPass> part_of_pass(const WorkRecord& record) const;

  const CostModel& costs_;
  const ModelConfig& config_;
  const TrainingRehearsal& rehearsal_;
  const RankedAttention& attention_;
};

}  // namespace headroom
