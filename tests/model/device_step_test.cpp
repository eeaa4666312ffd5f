// A training step on a GPU beside the same step on the CPU.
#include <gtest/gtest.h>

#include "headroom/train/rehearsal.h"
#include "model/small_models.h"
#include "ops/cases.h"

namespace headroom {
namespace {

class DeviceStep : public OpsLevels {};
INSTANTIATE_TEST_SUITE_P(Device, DeviceStep, all_levels());

SmallStep step_of(bool qwen3, DType dtype) {
  SmallStep step{.config = small_model(!qwen3, qwen3),
                 .sizes = {.batch = 2, .context = 37},
                 .strategy = {.layers = {.keep_all = 1, .keep_attention = 1}, .compute_dtype = dtype}};
  step.config.layers = 2;
  return step;
}

TEST_P(DeviceStep, AgreesWithTheCpu) {
  for (const bool qwen3 : {true, false}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SmallStep step = step_of(qwen3, dtype);
      std::vector<float> weights = random_weights(step.config);
      for (float& weight : weights) weight = static_cast<float>(BFloat16(weight));
      const HostBatch batch = random_batch(step.config, step.sizes);
      const StepResult expected = step.run(weights, batch);
      step.make_backend = backend_under_test;
      const StepResult actual = step.run(weights, batch);
      const bool f32 = dtype == DType::f32;
      EXPECT_NEAR(actual.loss, expected.loss, (f32 ? 1e-6 : 2e-3) * expected.loss);
      EXPECT_NEAR(actual.evaluated, expected.evaluated, (f32 ? 1e-6 : 2e-3) * expected.evaluated);
      const WorstDifference worst = worst_difference(step.config, actual.gradients, expected.gradients);
      EXPECT_LT(worst.relative, f32 ? 1e-5 : 0.05) << worst.parameter;
      EXPECT_EQ(step.run(weights, batch), actual);  // the same bits again
    }
  }
}

// Every gradient is summed in f32 and rounded once, also where tiles and chunks add to it.
TEST_P(DeviceStep, SixteenBitGradientsAreThoseOfF32Rounded) {
  SmallStep step = step_of(true, DType::bf16);
  ASSERT_FALSE(step.config.tied_embeddings);
  step.make_backend = backend_under_test;
  step.strategy.mlp_tile_tokens = 20;
  step.strategy.loss_chunk_tokens = 30;
  const std::vector<float> weights = random_weights(step.config);
  const HostBatch batch = random_batch(step.config, step.sizes);
  const StepResult expected = rounded_to_bf16(step.run(weights, batch));
  step.strategy.state = StatePrecision::bf16;
  const StepResult actual = step.run(weights, batch);
  // cuBLASLt may add up in another order for another result: then some roundings go the other way.
  if (GetParam() == std::string_view("on_host")) {
    EXPECT_EQ(actual, expected);
  }
  const WorstDifference worst = worst_difference(step.config, actual.gradients, expected.gradients);
  EXPECT_LT(worst.relative, 4e-3) << worst.parameter;
}

TEST_P(DeviceStep, SameBitsWhateverIsKept) {
  SmallStep step = step_of(true, DType::bf16);
  step.make_backend = backend_under_test;
  const std::vector<float> weights = random_weights(step.config);
  const HostBatch batch = random_batch(step.config, step.sizes);
  const StepResult expected = step.run(weights, batch);
  for (const LayerPolicy& policy :
       {LayerPolicy{.keep_all = 2}, LayerPolicy{.recompute = 2}, LayerPolicy{.keep_all = 1, .offload = 1}}) {
    for (const bool projections_again : {false, true}) {
      step.strategy.layers = policy;
      step.strategy.projections_again = projections_again;
      EXPECT_EQ(step.run(weights, batch), expected) << describe(step.strategy);
    }
  }
}

}  // namespace
}  // namespace headroom
