// What layers cost, learned from rehearsals in which all layers do the same: bytes and seconds of each layer
// for each of the ways to keep its activations. Strategies that mix the ways are added up from them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "headroom/plan/plan.h"

namespace headroom {

// What one of the micro-steps that share the request's batch trains on.
[[nodiscard]] TrainingProblem micro_step_of(const PlanRequest& request, const Strategy& cut);

// In the order in which LayerPolicy counts them.
enum class LayerKind : std::uint8_t { keep_all, keep_attention, recompute, offload };
inline constexpr std::size_t kLayerKinds = 4;

// Of all layers under one kind.
struct UniformLayers {
  std::vector<std::int64_t> kept_before;    // [layers + 1]: bytes that the layers before one leave behind
  std::vector<std::int64_t> forward_peak;   // [layers]: highest live bytes while the layer runs
  std::vector<std::int64_t> backward_peak;  // [layers]
  std::vector<double> seconds_before;       // [layers + 1]: kernels of the layers before one, both ways
  std::vector<double> copy_seconds_before;  // [layers + 1]
};

// What lives as long as the run, and its update: whatever the layers do, and however loss and MLP are cut.
struct RunCosts {
  std::int64_t device_bytes = 0;
  std::int64_t host_bytes = 0;
  std::int64_t update_peak_bytes = 0;  // of the device, with what lives as long as the run
  double update_seconds = 0;
};
[[nodiscard]] RunCosts run_costs(const PlanRequest& request, Strategy cut, const CostModel& costs);

// For one way to cut batch, loss and MLP; bytes are those above what lives as long as the run.
class LayerCosts {
 public:
  LayerCosts(const PlanRequest& request, const Strategy& cut, const CostModel& costs, bool offload);

  // The same with the loss cut in another way: what changes is learned from a model of one layer.
  [[nodiscard]] LayerCosts with_loss(const PlanRequest& request, const Strategy& from, const Strategy& to,
                                     const CostModel& costs) const;

  // What all micro-steps of an update take by the cost model.
  [[nodiscard]] double seconds(const LayerPolicy& policy) const;
  // The live peak is at least this: the highest of moments that surely come.
  [[nodiscard]] std::int64_t live_bytes_at_least(const LayerPolicy& policy) const;
  // The inputs that have moved to the host.
  [[nodiscard]] std::int64_t host_bytes(const LayerPolicy& policy) const {
    return policy.offload * input_bytes_;
  }

 private:
  std::int64_t layers_;
  double accumulation_;
  std::array<UniformLayers, kLayerKinds> kinds_;
  std::vector<double> forward_seconds_before_;  // [layers + 1], of a layer run again
  std::int64_t input_bytes_ = 0;
  std::int64_t loss_bytes_ = 0;  // live peak of the loss, less what the layers have kept
  double outside_seconds_ = 0;   // embedding, loss
  double outside_copy_seconds_ = 0;
};

}  // namespace headroom
