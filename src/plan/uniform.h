// What layers cost, learned from rehearsals in which all layers do the same: bytes and seconds of each layer
// for each of the ways to keep its activations. Strategies that mix the ways are added up from them. Equal
// layers cost the same wherever they are, so a few layers of a deep model are rehearsed and stand for the
// rest.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "headroom/plan/plan.h"
#include "plan/rank_plan.h"

namespace headroom {

// What one of the micro-steps that share the request's batch trains on.
[[nodiscard]] TrainingProblem micro_step_of(const PlanRequest& request, const Strategy& cut);

// In the order in which LayerPolicy counts them.
enum class LayerKind : std::uint8_t { keep_all, keep_attention, recompute, offload };
inline constexpr std::size_t kLayerKinds = 4;

// A model of at most four layers that stands for a deeper one: its first layer, one of each sort between (a
// layer slides or does not), its last.
struct LayerSample {
  ModelConfig config;
  std::vector<std::int64_t> of_layer;  // [layers of the model]: which layer of the sample it is like
};
[[nodiscard]] LayerSample sample_layers(const ModelConfig& config);

// Of all layers under one kind.
struct UniformLayers {
  std::vector<std::int64_t> kept_before;       // [layers + 1]: bytes that the layers before one leave behind
  std::vector<std::int64_t> forward_peak;      // [layers]: highest live bytes while the layer runs
  std::vector<std::int64_t> backward_peak;     // [layers]
  std::vector<double> seconds_before;          // [layers + 1]: kernels of the layers before one, both ways
  std::vector<double> forward_seconds_before;  // [layers + 1], of a layer run again
  std::vector<double> copy_seconds_before;     // [layers + 1]
};

// The model's parameters and their update: whatever the layers do, and however batch, loss and MLP are cut.
struct RunCosts {
  std::int64_t device_bytes = 0;       // live as long as the run
  std::int64_t host_bytes = 0;         // the optimizer's state, where it is there
  std::int64_t transfer_bytes = 0;     // of the host, while weights are loaded or saved
  std::int64_t update_peak_bytes = 0;  // of the device, with what lives as long as the run
  double update_seconds = 0;
};
[[nodiscard]] RunCosts run_costs(const PlanRequest& request, Strategy cut, const CostModel& costs);

// Peak and seconds of the loss of a model of one layer: good for the difference between two ways to cut it.
struct LossCosts {
  std::int64_t peak_bytes = 0;
  double seconds = 0;

  LossCosts operator-(const LossCosts& other) const {
    return {peak_bytes - other.peak_bytes, seconds - other.seconds};
  }
};
[[nodiscard]] LossCosts loss_costs(const PlanRequest& request, Strategy cut, const CostModel& costs);

// For one way to cut batch, loss and MLP, and attention that takes so long over ranks; bytes are those above
// what lives as long as the run, with blocks rounded up as an arena holds them. Good for policies of the
// kinds that the given ones have.
class LayerCosts {
 public:
  // `other`: the costs of a cut that differs only in whether projections are made again, for the same
  // policies; null where there are none.
  LayerCosts(const PlanRequest& request, const Strategy& cut, const CostModel& costs,
             std::span<const LayerPolicy> policies, const RankedAttention& attention,
             const LayerCosts* other = nullptr);

  // What all micro-steps of an update take by the cost model. `loss`: what the loss costs more than in the
  // cut, where it is cut in another way.
  [[nodiscard]] double seconds(const LayerPolicy& policy, const LossCosts& loss = {}) const;
  // The arena is at least this: what is there at the highest of moments that surely come.
  [[nodiscard]] std::int64_t bytes_at_least(const LayerPolicy& policy, const LossCosts& loss = {}) const;
  // The highest of them while the loss is computed, found without a loop over layers.
  [[nodiscard]] std::int64_t bytes_in_loss(const LayerPolicy& policy, const LossCosts& loss = {}) const;
  // The inputs that have moved to the host, or what loading and saving take there, and its buffers for a
  // batch.
  [[nodiscard]] std::int64_t host_bytes(const LayerPolicy& policy, std::int64_t transfer_bytes) const {
    return staged_bytes_ + std::max(transfer_bytes, policy.offload * input_bytes_);
  }

 private:
  // What layers begin to end - 1 keep of a kind.
  [[nodiscard]] std::int64_t kept(const LayerPolicy& policy, LayerKind kind, std::int64_t begin,
                                  std::int64_t end) const;

  double accumulation_;
  std::array<UniformLayers, kLayerKinds> kinds_;  // empty where no policy has the kind
  std::int64_t input_bytes_ = 0;
  std::int64_t staged_bytes_ = 0;
  std::int64_t loss_bytes_ = 0;  // live peak of the loss, less what the layers have kept
  double outside_seconds_ = 0;   // embedding, loss
  double outside_copy_seconds_ = 0;
};

// Both, learned once for cuts whose micro-steps are the same: many coincide, since a tile or a chunk has no
// more tokens than a rank, and a micro-step is the same whether or not ranks divide the optimizer's state.
// Good for requests that differ in nothing but what ranks divide.
class CostsOfCuts {
 public:
  explicit CostsOfCuts(const CostModel& costs) : costs_(costs) {}

  [[nodiscard]] const LayerCosts& layers(const PlanRequest& request, const Strategy& cut,
                                         std::span<const LayerPolicy> policies, RankPlan& ranks);
  [[nodiscard]] const LossCosts& loss(const PlanRequest& request, const Strategy& cut);

 private:
  // Equal for strategies with equal micro-steps.
  [[nodiscard]] static Strategy micro_step_key(Strategy cut);

  const CostModel& costs_;
  std::map<Strategy, LayerCosts> layers_;
  std::map<Strategy, LossCosts> losses_;
};

}  // namespace headroom
