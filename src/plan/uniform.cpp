#include "plan/uniform.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "headroom/memory/usage.h"

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

struct Place {
  bool backward = false;
  std::int64_t layer = -1;  // -1: outside the layers
};

// Of "forward/layer 3/attention".
Place place_of(std::string_view path) {
  constexpr std::string_view kForward = "forward/layer ";
  constexpr std::string_view kBackward = "backward/layer ";
  Place place;
  place.backward = path.starts_with(kBackward);
  if (!place.backward && !path.starts_with(kForward)) return place;
  path.remove_prefix(place.backward ? kBackward.size() : kForward.size());
  std::from_chars(path.data(), path.data() + path.size(), place.layer);
  return place;
}

}  // namespace

TrainingProblem micro_step_of(const PlanRequest& request, const Strategy& cut) {
  TrainingProblem problem = request.problem;
  problem.sizes.batch /= cut.accumulation;
  problem.accumulation = cut.accumulation;
  return problem;
}

RunCosts run_costs(const PlanRequest& request, Strategy cut, const CostModel& costs) {
  cut.layers = uniform(LayerKind::recompute, request.problem.config.layers);
  const TrainingRehearsal rehearsal =
      rehearse(micro_step_of(request, cut), cut, rehearsed_on(request.device));
  RunCosts run{.update_seconds = costs.seconds(rehearsal.update)};
  for (const StageUsage& row : usage_by_stage(rehearsal.ledger, Space::device)) {
    if (!row.stage.empty()) continue;
    if (row.phase == "load") run.device_bytes = row.live_bytes;
    if (row.phase == "update") run.update_peak_bytes = row.peak_bytes;
  }
  for (const StageUsage& row : usage_by_stage(rehearsal.ledger, Space::host)) {
    if (row.phase == "load" && row.stage.empty()) run.host_bytes = row.live_bytes;
  }
  return run;
}

namespace {

// Peak and seconds of the loss of a model of one layer.
struct LossCosts {
  std::int64_t peak_bytes = 0;
  double seconds = 0;
};
LossCosts loss_costs(const PlanRequest& request, Strategy cut, const CostModel& costs) {
  TrainingProblem problem = micro_step_of(request, cut);
  problem.config.layers = 1;
  problem.config.sliding_window = 0;  // what the layer sees is not the loss's business
  problem.config.sliding_layers.clear();
  cut.layers = {.recompute = 1};
  const TrainingRehearsal rehearsal = rehearse(problem, cut, rehearsed_on(request.device));
  LossCosts found;
  for (const StageUsage& row : usage_by_stage(rehearsal.ledger, Space::device)) {
    if (row.phase == "micro-step" && row.stage == "loss") found.peak_bytes = row.peak_bytes;
  }
  for (const WorkRecord& record : rehearsal.micro_step) {
    if (rehearsal.ledger.stage_path(record.stage) == "loss") found.seconds += costs.seconds(record.work);
  }
  return found;
}

}  // namespace

LayerCosts LayerCosts::with_loss(const PlanRequest& request, const Strategy& from, const Strategy& to,
                                 const CostModel& costs) const {
  LayerCosts changed = *this;
  if (from == to) return changed;
  const LossCosts before = loss_costs(request, from, costs);
  const LossCosts after = loss_costs(request, to, costs);
  changed.loss_bytes_ += after.peak_bytes - before.peak_bytes;
  changed.outside_seconds_ += after.seconds - before.seconds;
  return changed;
}

LayerCosts::LayerCosts(const PlanRequest& request, const Strategy& cut, const CostModel& costs, bool offload)
    : layers_(request.problem.config.layers), accumulation_(static_cast<double>(cut.accumulation)) {
  const TrainingProblem problem = micro_step_of(request, cut);
  forward_seconds_before_.assign(at(layers_ + 1), 0);
  for (std::size_t k = 0; k < kLayerKinds; ++k) {
    const auto kind = static_cast<LayerKind>(k);
    UniformLayers& uniform_layers = kinds_[k];
    uniform_layers.kept_before.assign(at(layers_ + 1), 0);
    uniform_layers.forward_peak.assign(at(layers_), 0);
    uniform_layers.backward_peak.assign(at(layers_), 0);
    uniform_layers.seconds_before.assign(at(layers_ + 1), 0);
    uniform_layers.copy_seconds_before.assign(at(layers_ + 1), 0);
    if (kind == LayerKind::offload && !offload) continue;
    Strategy strategy = cut;
    strategy.layers = uniform(kind, layers_);
    const TrainingRehearsal rehearsal = rehearse(problem, strategy, rehearsed_on(request.device));

    std::int64_t resident = 0;  // as long as the run
    std::int64_t embedded = 0;
    std::int64_t loss_peak = 0;
    for (const StageUsage& row : usage_by_stage(rehearsal.ledger, Space::device)) {
      if (row.phase == "load" && row.stage.empty()) resident = row.live_bytes;
      if (row.phase != "micro-step") continue;
      if (row.stage == "forward/embedding") embedded = row.live_bytes;
      if (row.stage == "loss") loss_peak = row.peak_bytes;
      const Place place = place_of(row.stage);
      if (place.layer < 0) continue;
      auto& peaks = place.backward ? uniform_layers.backward_peak : uniform_layers.forward_peak;
      peaks[at(place.layer)] = std::max(peaks[at(place.layer)], row.peak_bytes - resident);
      const bool whole = row.stage.find('/', row.stage.find('/') + 1) == std::string::npos;
      if (whole && !place.backward && kind != LayerKind::offload) {
        uniform_layers.kept_before[at(place.layer) + 1] = row.live_bytes - embedded;
      }
    }
    if (kind == LayerKind::recompute) {
      loss_bytes_ = loss_peak - resident - uniform_layers.kept_before[at(layers_)];
      input_bytes_ = uniform_layers.kept_before[1];
    }

    outside_seconds_ = 0;
    double outside_copies = 0;
    std::vector<double> forward(at(layers_), 0);
    std::vector<double> both(at(layers_), 0);
    std::vector<double> copies(at(layers_), 0);
    for (const WorkRecord& record : rehearsal.micro_step) {
      const double seconds = costs.seconds(record.work);
      const Place place = place_of(rehearsal.ledger.stage_path(record.stage));
      if (place.layer < 0) {
        (record.work.kernel == "copy" ? outside_copies : outside_seconds_) += seconds;
      } else if (record.work.kernel == "copy") {
        copies[at(place.layer)] += seconds;
      } else {
        both[at(place.layer)] += seconds;
        if (!place.backward) forward[at(place.layer)] += seconds;
      }
    }
    if (kind == LayerKind::recompute) outside_copy_seconds_ = outside_copies;
    // Every layer brings back the input of the one before; the last one's comes back before them all.
    if (kind == LayerKind::offload) copies[0] += outside_copies - outside_copy_seconds_;
    for (std::int64_t i = 0; i < layers_; ++i) {
      uniform_layers.seconds_before[at(i) + 1] = uniform_layers.seconds_before[at(i)] + both[at(i)];
      uniform_layers.copy_seconds_before[at(i) + 1] =
          uniform_layers.copy_seconds_before[at(i)] + copies[at(i)];
      if (kind == LayerKind::recompute) {
        forward_seconds_before_[at(i) + 1] = forward_seconds_before_[at(i)] + forward[at(i)];
      }
    }
  }
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

double LayerCosts::seconds(const LayerPolicy& policy) const {
  double kernels = outside_seconds_;
  double copies = outside_copy_seconds_;
  for_each_kind(policy, [&](LayerKind kind, std::int64_t begin, std::int64_t end) {
    const UniformLayers& all = kinds_[static_cast<std::size_t>(kind)];
    kernels += all.seconds_before[at(end)] - all.seconds_before[at(begin)];
    copies += all.copy_seconds_before[at(end)] - all.copy_seconds_before[at(begin)];
    if (kind != LayerKind::recompute) return;
    // Of every run of layers behind one input, all but the last are run forward again.
    for (std::int64_t first = begin; first < end; first += policy.input_every) {
      const std::int64_t last = std::min(first + policy.input_every, end) - 1;
      kernels += forward_seconds_before_[at(last)] - forward_seconds_before_[at(first)];
    }
  });
  return accumulation_ * std::max(kernels, copies);
}

std::int64_t LayerCosts::live_bytes_at_least(const LayerPolicy& policy) const {
  std::int64_t kept = 0;  // by the kinds before
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
      highest = std::max(highest, peak - all.kept_before[at(begin)] + kept);
      if (++place == every) {
        left_out += every - 1;
        place = 0;
      }
    }
    const std::int64_t inputs_left_out = (end - begin) - ((end - begin) + every - 1) / every;
    kept += all.kept_before[at(end)] - all.kept_before[at(begin)] - inputs_left_out * input_bytes_;
  });
  return std::max(highest, kept + loss_bytes_);
}

}  // namespace headroom
