// What the search adds up from uniform layers is what a rehearsal of the mixture says: seconds exactly, and
// never more bytes.
#include "plan/uniform.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "headroom/core/bytes.h"
#include "headroom/plan.h"

namespace headroom {
namespace {

using enum AttentionKind;

struct Sums {
  std::int64_t layers = 0;
  std::int64_t seq = 0;
  std::int64_t vocab = 0;
  std::int64_t mlp_tile = 0;
  const char* device = "";  // of the catalogue
  std::vector<AttentionKind> attention = {};
};

class LayerCostsOf : public testing::TestWithParam<Sums> {};

TEST_P(LayerCostsOf, ThePartsAddUp) {
  const Sums& sums = GetParam();
  PlanRequest request;
  request.problem.config = find_model("demo");
  request.problem.config.layers = sums.layers;
  request.problem.config.vocab = sums.vocab;
  request.problem.config.layer_attention = sums.attention;
  request.problem.config.sliding_window = sums.attention.empty() ? 0 : 40;
  request.problem.sizes = {.batch = 2, .context = sums.seq};
  request.problem.mask = parse_mask("causal");
  request.budget_bytes = kGiB;
  request.host_budget_bytes = kGiB;
  request.device = find_in_catalogue(sums.device).device;
  const CostModel costs(request.device, request.problem.compute_dtype);
  Strategy strategy{
      .layers = {}, .loss_chunk_tokens = 96, .mlp_tile_tokens = sums.mlp_tile, .accumulation = 2};
  const std::vector<LayerPolicy> policies = search_space(request).policies;
  const LayerCosts layers(request, strategy, costs, policies, {});
  const RunCosts run = run_costs(request, strategy, costs);
  for (const LayerPolicy& policy : policies) {
    strategy.layers = policy;
    const PlannedStep step = plan_step(request, strategy, costs);
    const std::int64_t least_bytes =
        std::max(run.device_bytes + layers.bytes_at_least(policy), run.update_peak_bytes);
    EXPECT_NEAR(layers.seconds(policy) + run.update_seconds, step.seconds, 1e-9 * step.seconds)
        << describe(strategy);
    EXPECT_LE(least_bytes, step.arena_bytes) << describe(strategy);
    // Near enough that the search skips what does not fit.
    EXPECT_GE(static_cast<double>(least_bytes), 0.9 * static_cast<double>(step.arena_bytes))
        << describe(strategy);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LayerCostsOf,
                         testing::Values(Sums{6, 256, 97, 64, "gtx-1080"},      // backward is highest
                                         Sums{5, 256, 20'000, 64, "gtx-1080"},  // the loss is
                                         Sums{5, 512, 97, 0, "h200"},           // copies are slowest
                                         Sums{9,
                                              256,
                                              97,
                                              64,
                                              "h200",  // two sorts of layers
                                              {full, sliding, sliding, full, sliding, sliding, full, sliding,
                                               sliding}}));

// Layers of a deep model that stand for the others.
TEST(LayerSample, HasEverySortOfLayer) {
  ModelConfig config = find_model("demo");
  config.layers = 1;
  EXPECT_EQ(sample_layers(config).config, config);
  EXPECT_EQ(sample_layers(config).of_layer, (std::vector<std::int64_t>{0}));
  config.layers = 7;
  EXPECT_EQ(sample_layers(config).config.layers, 3);
  EXPECT_EQ(sample_layers(config).of_layer, (std::vector<std::int64_t>{0, 1, 1, 1, 1, 1, 2}));
  config.sliding_window = 5;
  config.layer_attention = {sliding, sliding, full, sliding, full, full, full};
  const LayerSample sample = sample_layers(config);
  validate(sample.config);
  EXPECT_EQ(sample.config.layer_attention, (std::vector{sliding, sliding, full, full}));
  EXPECT_EQ(sample.of_layer, (std::vector<std::int64_t>{0, 1, 2, 1, 2, 2, 3}));
}

}  // namespace
}  // namespace headroom
