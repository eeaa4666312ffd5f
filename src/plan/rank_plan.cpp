#include "plan/rank_plan.h"

#include <algorithm>

namespace headroom {
namespace {

// body(kind, problem of its attention), for every kind that layers have.
template <class Body>
void for_each_attention(const TrainingProblem& problem, const Decoder& decoder, const Body& body) {
  std::array<bool, 2> known{};
  for (std::int64_t layer = 0; layer < problem.config.layers; ++layer) {
    const auto kind = static_cast<std::size_t>(layer_spec(problem.config, layer).attention);
    if (!known[kind]) body(kind, attention_problem(problem, decoder.layer_mask(layer)));
    known[kind] = true;
  }
}

// It has the partition and the masks; its schedules are not used.
Decoder partitioned(const TrainingProblem& problem, Strategy strategy) {
  strategy.layers = {.recompute = problem.config.layers};
  return {problem.config, strategy, problem.sizes, problem.mask, 0};
}

}  // namespace

const RankedAttention& RankPlan::attention(const TrainingProblem& micro_step, const Strategy& strategy) {
  const Key key = {micro_step.sizes.batch, micro_step.sizes.context, strategy.ring_ranks,
                   strategy.head_group};
  const auto [place, is_new] = attention_.try_emplace(key);
  if (!is_new || strategy.ring_ranks == 1) return place->second;
  const Decoder decoder = partitioned(micro_step, strategy);
  for_each_attention(micro_step, decoder, [&](std::size_t kind, AttentionProblem problem) {
    problem.mask.max_documents = micro_step.sizes.max_documents;
    place->second[kind] = play_attention(problem, {}, decoder.partition(),
                                         static_cast<int>(strategy.head_group), costs_.rank_rates());
  });
  return place->second;
}

const RankClasses& RankPlan::classes(const TrainingProblem& micro_step, const Strategy& strategy) {
  const Key key = {micro_step.sizes.batch, micro_step.sizes.context, strategy.ring_ranks,
                   strategy.head_group};
  const auto [place, is_new] = classes_.try_emplace(key);
  if (!is_new) return place->second;
  if (strategy.ring_ranks == 1) {
    place->second = {.classes = {{.first = 0, .count = 1}}, .of_rank = {0}};
    return place->second;
  }
  const Decoder decoder = partitioned(micro_step, strategy);
  std::vector<RankMemoryKey> keys(static_cast<std::size_t>(strategy.ring_ranks));
  for_each_attention(micro_step, decoder, [&](std::size_t, AttentionProblem problem) {
    problem.mask.max_documents = micro_step.sizes.max_documents;
    const std::vector<RankMemoryKey> of_kind =
        rank_memory_keys(problem, decoder.partition(), static_cast<int>(strategy.head_group));
    for (std::size_t rank = 0; rank < keys.size(); ++rank) {
      keys[rank].insert(keys[rank].end(), of_kind[rank].begin(), of_kind[rank].end());
    }
  });
  place->second = rank_classes(keys);
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

double RecordSeconds::of(std::span<const WorkRecord> records) const {
  double kernels = 0;
  double copies = 0;
  for (const WorkRecord& record : records) {
    (record.work.kind == WorkKind::copy ? copies : kernels) += of(record);
  }
  return std::max(kernels, copies);
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
      } else if (record.work.kind == WorkKind::communication) {
        traffic.sum_seconds += times * costs_.seconds(record.work);
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

}  // namespace headroom
