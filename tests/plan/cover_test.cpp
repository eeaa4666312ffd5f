// Planned equals run, to the byte, over a cover of what a training step can vary.
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "train/planned_run.h"

namespace headroom {
namespace {

// Heads and their sizes, shared or not, normalised or not, tied or not; one layer to five; sizes that no tile
// divides, a vocabulary of one word.
std::vector<ModelConfig> models() {
  std::vector<ModelConfig> models(6, small_model(true, true));
  models[0] = find_model("demo");
  models[0].layers = 3;
  models[1] = small_model(false, false);
  models[1].heads_kv = models[1].heads_q;
  models[2].layers = 1;
  models[2].vocab = 1;
  models[3] = small_model(false, true);
  models[3].heads_q = 1;
  models[3].heads_kv = 1;
  models[3].head_dim = 72;
  models[3].layers = 2;
  models[4].head_dim = 8;
  models[4].heads_q = 6;
  models[4].heads_kv = 3;
  models[4].vocab = 1'009;
  models[4].layers = 4;
  models[5].layers = 3;
  models[5].sliding_window = 24;
  models[5].layer_attention = {AttentionKind::sliding, AttentionKind::full, AttentionKind::sliding};
  return models;
}

std::vector<LayerPolicy> policies(std::int64_t layers) {
  const std::int64_t third = layers / 3;
  const std::int64_t half = layers / 2;
  return {{.keep_all = layers},
          {.keep_attention = layers},
          {.recompute = layers},
          {.recompute = layers, .input_every = 2},
          {.offload = layers},
          {.keep_all = third, .keep_attention = third, .recompute = layers - 2 * third},
          {.keep_all = third, .recompute = third, .offload = layers - 2 * third},
          {.keep_attention = half, .offload = layers - half}};
}

constexpr std::array kMasks = {"causal", "window:17", "causal+dilated:32/2"};
constexpr std::array kDTypes = {DType::f32, DType::bf16, DType::f16};
constexpr std::array<std::int64_t, 5> kSeqs = {1, 40, 97, 128, 200};
constexpr std::array<std::int64_t, 3> kBatches = {1, 2, 3};
constexpr std::array<std::int64_t, 2> kAccumulations = {1, 2};
constexpr std::array<std::int64_t, 2> kDocuments = {0, 3};
constexpr std::array<std::int64_t, 3> kLossChunks = {0, 7, 96};
constexpr std::array<std::int64_t, 4> kMlpTiles = {0, 16, 100, 4096};
constexpr std::array kOptimizerOffloads = {false, true};

// Which value of each list a combination takes; in the order above, policy and model first.
using Choice = std::array<std::size_t, 11>;
constexpr Choice kValues = {8,
                            6,
                            kSeqs.size(),
                            kMasks.size(),
                            kDTypes.size(),
                            kBatches.size(),
                            kAccumulations.size(),
                            kDocuments.size(),
                            kLossChunks.size(),
                            kMlpTiles.size(),
                            kOptimizerOffloads.size()};

// Every policy with every model and length; the other values as they come.
std::vector<Choice> cover() {
  std::vector<Choice> choices;
  for (std::size_t n = 0; n < kValues[0] * kValues[1] * kValues[2]; ++n) {
    Choice choice{n % kValues[0], n / kValues[0] % kValues[1], n / kValues[0] / kValues[1]};
    for (std::size_t i = 3; i < choice.size(); ++i) choice[i] = Random(3, i).below(n, kValues[i]);
    choices.push_back(choice);
  }
  return choices;
}

Combination combination_of(const Choice& choice) {
  const ModelConfig config = models()[choice[1]];
  return {.config = config,
          .sizes = {.batch = kBatches[choice[5]],
                    .context = kSeqs[choice[2]],
                    .max_documents = kDocuments[choice[7]]},
          .layers = policies(config.layers)[choice[0]],
          .mask = kMasks[choice[3]],
          .dtype = kDTypes[choice[4]],
          .accumulation = kAccumulations[choice[6]],
          .loss_chunk = kLossChunks[choice[8]],
          .mlp_tile = kMlpTiles[choice[9]],
          .offload_optimizer = kOptimizerOffloads[choice[10]]};
}

TEST(PlannedEqualsRun, EveryPairOfValuesMeets) {
  const std::vector<Choice> choices = cover();
  EXPECT_GE(choices.size(), 200u);
  for (std::size_t i = 0; i < kValues.size(); ++i) {
    for (std::size_t j = i + 1; j < kValues.size(); ++j) {
      std::set<std::pair<std::size_t, std::size_t>> met;
      for (const Choice& choice : choices) met.emplace(choice[i], choice[j]);
      EXPECT_EQ(met.size(), kValues[i] * kValues[j]) << "lists " << i << " and " << j;
    }
  }
}

// Wider than one pass of a product is deep: its sums wait in the workspace.
TEST(PlannedEqualsRun, WhereTheMlpIsWide) {
  ModelConfig config = small_model(true, true);
  config.hidden = 16;
  config.layers = 2;
  config.mlp = 28'672;
  for (const DType dtype : kDTypes) {
    run_as_planned({.config = config,
                    .sizes = {.batch = 1, .context = 21},
                    .layers = {.keep_all = 1, .recompute = 1},
                    .mask = "causal",
                    .dtype = dtype,
                    .accumulation = 1,
                    .loss_chunk = 0,
                    .mlp_tile = 8,
                    .offload_optimizer = false});
  }
}

TEST(PlannedEqualsRun, OverACoverOfCombinations) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr std::size_t kEvery = 7;  // slow there, and the bytes are the same
#else
  constexpr std::size_t kEvery = 1;
#endif
  const std::vector<Choice> choices = cover();
  for (std::size_t i = 0; i < choices.size(); i += kEvery) {
    const Combination combination = combination_of(choices[i]);
    SCOPED_TRACE(to_string(combination));
    run_as_planned(combination);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace headroom
