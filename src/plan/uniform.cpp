#include "plan/uniform.h"

#include <algorithm>
#include <optional>

#include "headroom/memory/usage.h"
#include "headroom/plan/played_phase.h"

namespace headroom {
namespace {

std::size_t at(std::int64_t layer) {
  return static_cast<std::size_t>(layer);
}

LayerPolicy uniform(LayerKind kind, std::int64_t layers) {
  switch (kind) {
    case LayerKind::keep_all: return {.keep_all = layers};
    case LayerKind::keep_attention: return {.keep_attention = layers};
    case LayerKind::recompute: return {.recompute = layers};
    case LayerKind::offload: return {.offload = layers};
  }
  return {};
}

// The rank that is rehearsed. Of a zigzag's ranks the last one takes most, and no slice of a divided state is
// larger than the last: bounds are then nearest to what a plan takes.
int rehearsed_rank(const Strategy& cut) {
  return static_cast<int>(cut.ranks()) - 1;
}

// The same with one layer, for what does not depend on layers.
TrainingProblem one_layer(TrainingProblem problem) {
  problem.config.layers = 1;
  problem.config.sliding_window = 0;
  problem.config.layer_attention.clear();
  return problem;
}

constexpr StagePath kEmbedding{{StageKind::forward}, {StageKind::embedding}};
constexpr StagePath kLoss{{StageKind::loss}};

// Bytes as an arena holds them: where blocks are small, rounding them up is most of what they take.
std::vector<StageUsage> in_the_arena(const Ledger& ledger, Space space) {
  return usage_by_stage(ledger, space, kArenaAlignment);
}

// The layer of a stage in the step.
struct Place {
  bool backward = false;
  std::int64_t layer = 0;
  bool whole = false;  // the layer's own stage, not one inside it
};

// Nothing outside the layers.
std::optional<Place> place_of(const StagePath& path) {
  if (path.depth() < 2 || path.stages()[1].kind != StageKind::layer) return std::nullopt;
  return Place{.backward = path.stages()[0].kind == StageKind::backward,
               .layer = path.stages()[1].index,
               .whole = path.depth() == 2};
}

}  // namespace

TrainingProblem micro_step_of(const PlanRequest& request, const Strategy& cut) {
  TrainingProblem problem = request.problem;
  problem.sizes.batch /= cut.accumulation;
  problem.accumulation = cut.accumulation;
  return problem;
}

LayerSample sample_layers(const ModelConfig& config) {
  LayerSample sample{.config = config, .of_layer = {}};
  sample.config.layer_attention.clear();
  std::array<std::int64_t, 2> inner = {-1, -1};  // the one that stands for those between; [AttentionKind]
  std::int64_t taken = 0;
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const AttentionKind attention = layer_spec(config, i).attention;
    std::int64_t& known = inner[static_cast<std::size_t>(attention)];
    const bool between = i > 0 && i + 1 < config.layers;
    if (between && known >= 0) {
      sample.of_layer.push_back(known);
      continue;
    }
    if (between) known = taken;
    sample.of_layer.push_back(taken++);
    if (config.sliding_window > 0) sample.config.layer_attention.push_back(attention);
  }
  sample.config.layers = taken;
  return sample;
}

RunCosts run_costs(const PlanRequest& request, Strategy cut, const CostModel& costs) {
  cut.layers = uniform(LayerKind::recompute, request.problem.config.layers);
  const TrainingProblem problem = micro_step_of(request, cut);
  Context context(request.device, {.rank = rehearsed_rank(cut), .count = static_cast<int>(cut.ranks())},
                  NotedMessages::sampled);
  Trainer trainer(Decoder(problem.config, cut, problem.sizes, problem.mask, rehearsed_rank(cut)),
                  problem.optimizer);
  trainer.load(context, [](Staging&) {});
  const std::int64_t labels = problem.sizes.batch * problem.sizes.context;
  if (problem.optimizer.kind != OptimizerKind::none) trainer.update(context, 1, labels);
  const PlayedPhase update = play_phase(context.ledger(), Phase::update, context.work(Phase::update),
                                        [&](const WorkRecord& record) { return costs.seconds(record.work); });
  RunCosts run{.update_seconds = update.seconds()};
  for (const StageUsage& row : in_the_arena(context.ledger(), Space::device)) {
    if (row.phase == Phase::load && row.stage.empty()) run.device_bytes = row.live_bytes;
    if (row.phase == Phase::update && row.stage.empty()) run.update_peak_bytes = row.peak_bytes;
  }
  for (const StageUsage& row : in_the_arena(context.ledger(), Space::host)) {
    if (row.phase != Phase::load || !row.stage.empty()) continue;
    run.host_bytes = row.peak_bytes - row.at_peak[static_cast<std::size_t>(Category::staging)];
    run.transfer_bytes = row.peak_bytes - row.live_bytes;
  }
  return run;
}

LossCosts loss_costs(const PlanRequest& request, Strategy cut, const CostModel& costs) {
  cut.layers = uniform(LayerKind::recompute, 1);
  const TrainingRehearsal rehearsal =
      rehearse_micro_step(one_layer(micro_step_of(request, cut)), cut, request.device, rehearsed_rank(cut));
  LossCosts found;
  for (const StageUsage& row : in_the_arena(rehearsal.ledger, Space::device)) {
    if (row.phase == Phase::micro_step && row.stage == kLoss) found.peak_bytes = row.peak_bytes;
  }
  for (const WorkRecord& record : rehearsal.micro_step) {
    if (rehearsal.ledger.stage_path(record.stage) == kLoss) found.seconds += costs.seconds(record.work);
  }
  return found;
}

namespace {

// One layer under one kind, whatever the layers around it.
struct LayerCost {
  std::int64_t kept = 0;            // bytes that it leaves behind
  std::int64_t forward_above = 0;   // highest live bytes while it runs, above what layers before it have kept
  std::int64_t backward_above = 0;  // the same in backward
  double seconds = 0;               // of main: kernels and waits for messages, both ways
  double forward_seconds = 0;
  double copy_seconds = 0;
};

// A step in which all layers are of one kind.
struct UniformStep {
  std::vector<LayerCost> layers;
  std::int64_t loss_bytes = 0;    // live peak of the loss, less what the layers have kept
  std::int64_t staged_bytes = 0;  // of the host
  double outside_seconds = 0;
  double outside_copy_seconds = 0;
};

void read_bytes(const TrainingRehearsal& rehearsal, LayerKind kind, UniformStep& step) {
  std::int64_t resident = 0;  // as long as the run
  std::int64_t embedded = 0;
  std::int64_t kept_before = 0;
  std::int64_t loss_peak = 0;
  std::vector<std::int64_t> kept_up_to(step.layers.size());
  for (const StageUsage& row : in_the_arena(rehearsal.ledger, Space::device)) {
    if (row.phase == Phase::load && row.stage.empty()) resident = row.live_bytes;
    if (row.phase != Phase::micro_step) continue;
    if (row.stage == kEmbedding) embedded = row.live_bytes;
    if (row.stage == kLoss) loss_peak = row.peak_bytes;
    const std::optional<Place> place = place_of(row.stage);
    if (!place) continue;
    LayerCost& layer = step.layers[at(place->layer)];
    std::int64_t& above = place->backward ? layer.backward_above : layer.forward_above;
    above = std::max(above, row.peak_bytes - resident);
    if (place->whole && !place->backward && kind != LayerKind::offload)
      kept_up_to[at(place->layer)] = row.live_bytes - embedded;
  }
  for (std::size_t i = 0; i < step.layers.size(); ++i) {
    LayerCost& layer = step.layers[i];
    layer.kept = kept_up_to[i] - kept_before;
    layer.forward_above -= kept_before;
    layer.backward_above -= kept_before;
    kept_before = kept_up_to[i];
  }
  step.loss_bytes = loss_peak - resident - kept_before;
  for (const StageUsage& row : in_the_arena(rehearsal.ledger, Space::host)) {
    if (row.phase == Phase::load && row.stage.empty()) step.staged_bytes = row.live_bytes;
  }
}

void read_seconds(const TrainingRehearsal& rehearsal, const RecordSeconds& record_seconds,
                  UniformStep& step) {
  const auto place_in = [&](std::uint32_t stage) { return place_of(rehearsal.ledger.stage_path(stage)); };
  const auto seconds_of = [&](const WorkRecord& record) { return record_seconds.of(record); };
  const auto add_to_layer = [&](std::uint32_t stage, double seconds) {
    const std::optional<Place> place = place_in(stage);
    (place ? step.layers[at(place->layer)].seconds : step.outside_seconds) += seconds;
    if (place && !place->backward) step.layers[at(place->layer)].forward_seconds += seconds;
  };
  static_cast<void>(
      play_phase(rehearsal.ledger, Phase::micro_step, rehearsal.micro_step, seconds_of, add_to_layer));
  for (const WorkRecord& record : rehearsal.micro_step) {
    if (record.stream != StreamId::copy) continue;
    const std::optional<Place> place = place_in(record.stage);
    (place ? step.layers[at(place->layer)].copy_seconds : step.outside_copy_seconds) += seconds_of(record);
  }
}

UniformStep uniform_step(const PlanRequest& request, const LayerSample& sample, Strategy cut, LayerKind kind,
                         const CostModel& costs, const RankedAttention& attention) {
  cut.layers = uniform(kind, sample.config.layers);
  cut.offload_optimizer = false;  // the run's business
  TrainingProblem problem = micro_step_of(request, cut);
  problem.config = sample.config;
  const TrainingRehearsal rehearsal = rehearse_micro_step(problem, cut, request.device, rehearsed_rank(cut));
  UniformStep step;
  step.layers.resize(at(sample.config.layers));
  read_bytes(rehearsal, kind, step);
  read_seconds(rehearsal, {costs, problem.config, rehearsal, attention}, step);
  return step;
}

// Of all layers of the model, from those of the sample.
UniformLayers spread(const std::vector<LayerCost>& costs, const LayerSample& sample) {
  UniformLayers all{.kept_before = {0},
                    .forward_peak = {},
                    .backward_peak = {},
                    .seconds_before = {0},
                    .forward_seconds_before = {0},
                    .copy_seconds_before = {0}};
  for (const std::int64_t like : sample.of_layer) {
    const LayerCost& layer = costs[at(like)];
    all.forward_peak.push_back(all.kept_before.back() + layer.forward_above);
    all.backward_peak.push_back(all.kept_before.back() + layer.backward_above);
    all.kept_before.push_back(all.kept_before.back() + layer.kept);
    all.seconds_before.push_back(all.seconds_before.back() + layer.seconds);
    all.forward_seconds_before.push_back(all.forward_seconds_before.back() + layer.forward_seconds);
    all.copy_seconds_before.push_back(all.copy_seconds_before.back() + layer.copy_seconds);
  }
  return all;
}

}  // namespace

LayerCosts::LayerCosts(const PlanRequest& request, const Strategy& cut, const CostModel& costs,
                       std::span<const LayerPolicy> policies, const RankedAttention& attention,
                       const LayerCosts* other)
    : accumulation_(static_cast<double>(cut.accumulation)) {
  const LayerSample sample = sample_layers(request.problem.config);
  const auto learn = [&](LayerKind kind) {
    return uniform_step(request, sample, cut, kind, costs, attention);
  };
  const auto keep = [&](LayerKind kind, const UniformStep& step) {
    kinds_[static_cast<std::size_t>(kind)] = spread(step.layers, sample);
  };
  // What is outside the layers is the same for all kinds.
  const UniformStep recompute = learn(LayerKind::recompute);
  keep(LayerKind::recompute, recompute);
  input_bytes_ = recompute.layers.front().kept;
  staged_bytes_ = recompute.staged_bytes;
  loss_bytes_ = recompute.loss_bytes;
  outside_seconds_ = recompute.outside_seconds;
  outside_copy_seconds_ = recompute.outside_copy_seconds;
  const auto any = [&](std::int64_t LayerPolicy::*count) {
    return std::ranges::any_of(policies, [&](const LayerPolicy& policy) { return policy.*count > 0; });
  };
  constexpr auto kAll = static_cast<std::size_t>(LayerKind::keep_all);
  if (other != nullptr) {
    kinds_[kAll] = other->kinds_[kAll];  // these layers make nothing again
  } else if (any(&LayerPolicy::keep_all)) {
    keep(LayerKind::keep_all, learn(LayerKind::keep_all));
  }
  if (any(&LayerPolicy::keep_attention)) keep(LayerKind::keep_attention, learn(LayerKind::keep_attention));
  if (!any(&LayerPolicy::offload)) return;
  UniformStep offload = learn(LayerKind::offload);
  // Every layer brings back the input of the one before; the last one's comes back before them all.
  offload.layers.front().copy_seconds += offload.outside_copy_seconds - outside_copy_seconds_;
  keep(LayerKind::offload, offload);
}

Strategy CostsOfCuts::micro_step_key(Strategy cut) {
  cut.layers = {};
  cut.offload_optimizer = false;
  if (cut.sharding == Sharding::optimizer) cut.sharding = Sharding::none;
  return cut;
}

const LayerCosts& CostsOfCuts::layers(const PlanRequest& request, const Strategy& cut,
                                      std::span<const LayerPolicy> policies, RankPlan& ranks) {
  const Strategy key = micro_step_key(cut);
  const auto known = layers_.find(key);
  if (known != layers_.end()) return known->second;
  Strategy other_key = key;
  other_key.projections_again = !cut.projections_again;
  const auto other = layers_.find(other_key);
  const RankedAttention& attention = ranks.attention(micro_step_of(request, cut), cut);
  LayerCosts learned(request, cut, costs_, policies, attention,
                     other == layers_.end() ? nullptr : &other->second);
  return layers_.emplace(key, std::move(learned)).first->second;
}

const LossCosts& CostsOfCuts::loss(const PlanRequest& request, const Strategy& cut) {
  const auto [place, is_new] = losses_.try_emplace(micro_step_key(cut));
  if (is_new) place->second = loss_costs(request, cut, costs_);
  return place->second;
}

namespace {

// body(kind, first layer, last layer + 1) for every kind that has layers.
template <class Body>
void for_each_kind(const LayerPolicy& policy, const Body& body) {
  std::int64_t begin = 0;
  const std::array counts = {policy.keep_all, policy.keep_attention, policy.recompute, policy.offload};
  for (std::size_t k = 0; k < kLayerKinds; ++k) {
    if (counts[k] > 0) body(static_cast<LayerKind>(k), begin, begin + counts[k]);
    begin += counts[k];
  }
}

}  // namespace

double LayerCosts::seconds(const LayerPolicy& policy, const LossCosts& loss) const {
  double kernels = outside_seconds_ + loss.seconds;
  double copies = outside_copy_seconds_;
  for_each_kind(policy, [&](LayerKind kind, std::int64_t begin, std::int64_t end) {
    const UniformLayers& all = kinds_[static_cast<std::size_t>(kind)];
    kernels += all.seconds_before[at(end)] - all.seconds_before[at(begin)];
    copies += all.copy_seconds_before[at(end)] - all.copy_seconds_before[at(begin)];
    if (kind != LayerKind::recompute) return;
    // Of every run of layers behind one input, all but the last are run forward again.
    if (policy.input_every == 1) return;
    for (std::int64_t first = begin; first < end; first += policy.input_every) {
      const std::int64_t last = std::min(first + policy.input_every, end) - 1;
      kernels += all.forward_seconds_before[at(last)] - all.forward_seconds_before[at(first)];
    }
  });
  return accumulation_ * std::max(kernels, copies);
}

std::int64_t LayerCosts::kept(const LayerPolicy& policy, LayerKind kind, std::int64_t begin,
                              std::int64_t end) const {
  const UniformLayers& all = kinds_[static_cast<std::size_t>(kind)];
  const std::int64_t every = kind == LayerKind::recompute ? policy.input_every : 1;
  const std::int64_t inputs_left_out = (end - begin) - ((end - begin) + every - 1) / every;
  return all.kept_before[at(end)] - all.kept_before[at(begin)] - inputs_left_out * input_bytes_;
}

std::int64_t LayerCosts::bytes_in_loss(const LayerPolicy& policy, const LossCosts& loss) const {
  std::int64_t bytes = loss_bytes_ + loss.peak_bytes;
  for_each_kind(policy, [&](LayerKind kind, std::int64_t begin, std::int64_t end) {
    bytes += kept(policy, kind, begin, end);
  });
  return bytes;
}

std::int64_t LayerCosts::bytes_at_least(const LayerPolicy& policy, const LossCosts& loss) const {
  std::int64_t kept_before = 0;  // by the kinds before
  std::int64_t highest = 0;
  for_each_kind(policy, [&](LayerKind kind, std::int64_t begin, std::int64_t end) {
    const UniformLayers& all = kinds_[static_cast<std::size_t>(kind)];
    const std::int64_t every = kind == LayerKind::recompute ? policy.input_every : 1;
    // A copy under way belongs to the layer before, which may be of another kind.
    const std::int64_t sure = kind == LayerKind::offload ? begin + 1 : begin;
    std::int64_t left_out = 0;  // inputs up to a layer's own that are not there while backward is in its run
    std::int64_t place = 0;     // in the run of layers behind one input
    for (std::int64_t i = sure; i < end; ++i) {
      std::int64_t peak = all.backward_peak[at(i)] - left_out * input_bytes_;
      if (every == 1) peak = std::max(peak, all.forward_peak[at(i)]);
      highest = std::max(highest, peak - all.kept_before[at(begin)] + kept_before);
      if (++place == every) {
        left_out += every - 1;
        place = 0;
      }
    }
    kept_before += kept(policy, kind, begin, end);
  });
  return std::max(highest, kept_before + loss_bytes_ + loss.peak_bytes);
}

}  // namespace headroom
