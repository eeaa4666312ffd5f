#include "plan/rank_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "headroom/plan/answer.h"
#include "headroom/plan/played_phase.h"

namespace headroom {
namespace {

// body(kind, problem of its attention), for every kind that layers have, in one group of ranks.
template <class Body>
void for_each_attention(const ModelConfig& config, const Decoder& decoder, const Body& body) {
  std::array<bool, 2> known{};
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const auto kind = static_cast<std::size_t>(layer_spec(config, layer).attention);
    if (!known[kind]) body(kind, decoder.schedule(layer)->problem());
    known[kind] = true;
  }
}

// What decides the memory of a rank's part of the divided state.
RankMemoryKey shard_memory_key(const Shards& shards, int rank) {
  RankMemoryKey key;
  for (const ShardSlice& slice : shards.slices(rank)) {
    key.push_back(static_cast<std::uint64_t>(slice.elements));
  }
  return key;
}

// It has the partition, the problems of attention and the shards; its schedules are not used.
Decoder partitioned(const TrainingProblem& problem, Strategy strategy) {
  strategy.layers = {.recompute = problem.config.layers};
  return {problem.config, strategy, problem.sizes, problem.mask, 0};
}

}  // namespace

RankPlan::Key RankPlan::key_of(const TrainingProblem& micro_step, const Strategy& strategy) {
  return {micro_step.sizes.batch,
          micro_step.sizes.context,
          strategy.ring_ranks,
          strategy.data_ranks,
          strategy.head_group,
          static_cast<std::int64_t>(strategy.sharding),
          static_cast<std::int64_t>(strategy.loss_ranks)};
}

RankPlan::Key RankPlan::attention_key_of(const TrainingProblem& micro_step, const Strategy& strategy) {
  Key key = key_of(micro_step, strategy);
  key[kStateKey] = key[kLossKey] = 0;
  return key;
}

const RankedAttention& RankPlan::attention(const TrainingProblem& micro_step, const Strategy& strategy) {
  const auto [place, is_new] = attention_.try_emplace(attention_key_of(micro_step, strategy));
  if (!is_new || strategy.ring_ranks == 1) return place->second;
  const Decoder decoder = partitioned(micro_step, strategy);
  for_each_attention(micro_step.config, decoder, [&](std::size_t kind, const AttentionProblem& problem) {
    place->second[kind] = play_attention(problem, {}, decoder.partition(),
                                         static_cast<int>(strategy.head_group), costs_.rank_rates());
  });
  return place->second;
}

const std::vector<RankMemory>& RankPlan::attention_memory(const TrainingProblem& micro_step,
                                                          const Strategy& strategy) {
  const auto [place, is_new] = attention_memory_.try_emplace(attention_key_of(micro_step, strategy));
  if (!is_new || strategy.ring_ranks == 1) return place->second;
  const Decoder decoder = partitioned(micro_step, strategy);
  place->second.resize(static_cast<std::size_t>(strategy.ring_ranks));
  for_each_attention(micro_step.config, decoder, [&](std::size_t, const AttentionProblem& problem) {
    const std::vector<RankMemory> of_kind =
        rank_memory(problem, decoder.partition(), static_cast<int>(strategy.head_group), device_);
    for (std::size_t rank = 0; rank < of_kind.size(); ++rank) place->second[rank].append(of_kind[rank]);
  });
  return place->second;
}

const RankClasses& RankPlan::classes(const TrainingProblem& micro_step, const Strategy& strategy) {
  const auto [place, is_new] = classes_.try_emplace(key_of(micro_step, strategy));
  if (!is_new) return place->second;
  const Decoder decoder = partitioned(micro_step, strategy);
  const std::vector<RankMemory>& places = attention_memory(micro_step, strategy);
  std::vector<RankMemory> ranks;
  for (int rank = 0; rank < static_cast<int>(strategy.ranks()); ++rank) {
    RankMemoryKey state = shard_memory_key(decoder.shards(), rank);
    if (strategy.loss_ranks != LossRanks::tokens) {
      const VocabularySlice slice =
          vocabulary_slice(decoder.parameters(), rank, static_cast<int>(strategy.ranks()));
      state.push_back(static_cast<std::uint64_t>(slice.words));
    }
    ranks.push_back({state, state, {}});
    if (!places.empty()) ranks.back().append(places[static_cast<std::size_t>(rank) % places.size()]);
  }
  place->second = rank_classes(ranks);
  return place->second;
}

std::optional<RecordSeconds::PartOfPass> RecordSeconds::part_of_pass(const WorkRecord& record) const {
  const StagePath path = rehearsal_.ledger.stage_path(record.stage);
  const std::span<const Stage> stages = path.stages();
  if (std::ranges::find(stages, StageKind::over_ranks, &Stage::kind) == stages.end()) return std::nullopt;
  const auto layer = std::ranges::find(stages, StageKind::layer, &Stage::kind);
  const auto kind = static_cast<std::size_t>(layer_spec(config_, layer->index).attention);
  const double part = 1.0 / static_cast<double>(std::max<std::int64_t>(rehearsal_.pass_pairs[kind], 1));
  if (record.work.kernel == "attention") return PartOfPass{part, &attention_[kind].forward};
  if (record.work.kernel == "attention backward") return PartOfPass{part, &attention_[kind].backward};
  return PartOfPass{};
}

double RecordSeconds::of(const WorkRecord& record) const {
  const std::optional<PartOfPass> over_ranks = part_of_pass(record);
  if (!over_ranks) return costs_.seconds(record.work);
  return over_ranks->pass == nullptr ? 0 : over_ranks->part * over_ranks->pass->seconds;
}

double RecordSeconds::of(Phase phase, std::span<const WorkRecord> records) const {
  return play_phase(rehearsal_.ledger, phase, records, [&](const WorkRecord& record) { return of(record); })
      .seconds();
}

RankTraffic RecordSeconds::traffic(std::int64_t accumulation) const {
  RankTraffic traffic;
  double sent = 0;
  double computed = 0;
  const auto add = [&](std::span<const WorkRecord> records, double times) {
    for (const WorkRecord& record : records) {
      if (const std::optional<PartOfPass> over_ranks = part_of_pass(record)) {
        if (over_ranks->pass == nullptr) continue;
        const PassTime& pass = *over_ranks->pass;
        const double part = times * over_ranks->part;
        traffic.attention_seconds += part * pass.seconds;
        traffic.exposed_seconds += part * pass.exposed_seconds();
        traffic.waited_seconds += part * (pass.waited_seconds + pass.exchanged_seconds);
        computed += part * pass.mean_compute_seconds;
        sent += part * static_cast<double>(pass.sent_bytes);
      } else if (record.work.kind == WorkKind::communication || record.work.sent_bytes > 0) {
        traffic.sum_seconds += times * costs_.message_seconds(record.work);
        sent += times * static_cast<double>(record.work.sent_bytes);
      }
    }
  };
  add(rehearsal_.micro_step, static_cast<double>(accumulation));
  add(rehearsal_.update, 1);
  traffic.sent_bytes = static_cast<std::int64_t>(sent);
  if (traffic.attention_seconds > 0) {
    traffic.bubbles = 1 - computed / traffic.attention_seconds;
    traffic.overlap = 1 - traffic.waited_seconds / traffic.attention_seconds;
  }
  return traffic;
}

std::string describe_choice(const std::vector<RankDivision>& divisions) {
  constexpr std::size_t kMostTold = 4;
  if (divisions.size() < 2) return {};
  std::string text;
  for (std::size_t i = 0; i < std::min(divisions.size(), kMostTold); ++i) {
    const RankDivision& one = divisions[i];
    text += fmt::format("{}--ring {} --shard {} --loss-ranks {}{}{}",
                        i == 0   ? ""
                        : i == 1 ? "; "
                                 : ", ",
                        one.ring_ranks, name(one.sharding), name(one.loss_ranks),
                        i == 0 && one.seconds ? ", " : " ",
                        one.seconds ? seconds_text(*one.seconds) : "does not fit");
    if (i == 0 && one.seconds) text += " a step";
  }
  if (divisions.size() > kMostTold) text += fmt::format(", {} others", divisions.size() - kMostTold);
  return text;
}

}  // namespace headroom
