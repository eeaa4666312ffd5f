// Whatever a step keeps, recomputes, offloads or tiles, on however many threads: the same bits. What the
// gradients are is compared with transformers in tests/parity and, here, with differences of the loss.
#include "headroom/model/decoder.h"

#include <gtest/gtest.h>

#include <numeric>

#include "model/small_models.h"

namespace headroom {
namespace {

constexpr LayerPolicy kKeepAll{.keep_all = 5};

// f32 sums in another order: a few hundred roundings of 2^-24, judged per parameter with room.
constexpr double kRounding = 1e-5;

void expect_same_bits(const StepResult& result, const StepResult& expected, const std::string& what) {
  EXPECT_EQ(result.loss, expected.loss) << what;
  EXPECT_EQ(result.evaluated, expected.evaluated) << what;
  // As bits, so that -0 is not 0 and NaN is itself.
  EXPECT_EQ(std::memcmp(result.gradients.data(), expected.gradients.data(),
                        expected.gradients.size() * sizeof(float)),
            0)
      << what;
}

std::vector<LayerPolicy> policies() {
  return {
      {.keep_attention = 5},
      {.recompute = 5},
      {.recompute = 5, .input_every = 2},
      {.recompute = 5, .input_every = 3},
      {.recompute = 5, .input_every = 5},
      {.offload = 5},
      {.keep_all = 1, .keep_attention = 1, .recompute = 2, .offload = 1, .input_every = 2},
      {.keep_all = 1, .recompute = 3, .offload = 1, .input_every = 3},
      {.keep_all = 2, .keep_attention = 2, .offload = 1},
      {.keep_attention = 1, .recompute = 4, .input_every = 3},
      {.keep_all = 3, .offload = 2},
      {.keep_all = 1, .keep_attention = 4},
  };
}

std::string to_text(const LayerPolicy& policy) {
  return fmt::format("all {}, attention {}, recompute {}, offload {}, every {}", policy.keep_all,
                     policy.keep_attention, policy.recompute, policy.offload, policy.input_every);
}

struct Kind {
  bool tied;
  bool qwen3;
};

class DecoderBits : public testing::TestWithParam<Kind> {
 protected:
  DecoderBits() { step_.strategy.layers = kKeepAll; }

  ModelConfig config_ = small_model(GetParam().tied, GetParam().qwen3);
  std::vector<float> weights_ = random_weights(config_);
  SmallStep step_{.config = config_};
  HostBatch batch_ = random_batch(config_, step_.sizes);
};

INSTANTIATE_TEST_SUITE_P(Models, DecoderBits,
                         testing::Values(Kind{true, true}, Kind{true, false}, Kind{false, true},
                                         Kind{false, false}),
                         [](const auto& kind) {
                           return fmt::format("{}{}", kind.param.tied ? "Tied" : "Untied",
                                              kind.param.qwen3 ? "QkNorm" : "");
                         });

TEST_P(DecoderBits, EveryPolicy) {
  const StepResult expected = step_.run(weights_, batch_);
  EXPECT_EQ(expected.loss, expected.evaluated);
  EXPECT_GT(expected.loss, 4);  // ln 211 is 5.35
  for (const LayerPolicy& policy : policies()) {
    step_.strategy.layers = policy;
    step_.strategy.projections_again = !step_.strategy.projections_again;
    expect_same_bits(step_.run(weights_, batch_), expected, to_text(policy));
  }
  step_.strategy = {.layers = {.recompute = 5}, .projections_again = true};
  expect_same_bits(step_.run(weights_, batch_), expected, "projections made again");
}

TEST_P(DecoderBits, EveryLossChunk) {
  const StepResult expected = step_.run(weights_, batch_);
  for (const std::int64_t tokens : {33, 96, 1, 300, 4096}) {
    step_.strategy.loss_chunk_tokens = tokens;
    step_.strategy.loss_chunk_vocab = tokens == 96 ? 512 : 0;
    expect_same_bits(step_.run(weights_, batch_), expected, fmt::format("{} tokens", tokens));
  }
}

TEST_P(DecoderBits, EveryMlpTile) {
  const StepResult expected = step_.run(weights_, batch_);
  for (const std::int64_t tile : {1, 7, 64, 1000}) {
    for (const LayerPolicy& policy : {kKeepAll, LayerPolicy{.recompute = 5}}) {
      step_.strategy.mlp_tile_tokens = tile;
      step_.strategy.layers = policy;
      expect_same_bits(step_.run(weights_, batch_), expected, fmt::format("{} tokens", tile));
    }
  }
}

TEST_P(DecoderBits, EveryNumberOfThreads) {
  const StepResult expected = step_.run(weights_, batch_);
  step_.strategy.layers = {
      .keep_all = 1, .keep_attention = 1, .recompute = 2, .offload = 1, .input_every = 2};
  step_.strategy.mlp_tile_tokens = 64;
  for (const int threads : {1, 2, 3}) {
    step_.threads = threads;
    expect_same_bits(step_.run(weights_, batch_), expected, fmt::format("{} threads", threads));
  }
}

// The vocabulary in parts: its blocks are 512 words, so this takes a larger one.
TEST(Decoder, ChunksOfTheVocabularyGiveTheSameBits) {
  ModelConfig config = small_model(true, true);
  config.vocab = 1201;
  config.layers = 2;
  SmallStep step{.config = config, .strategy = {.layers = {.keep_all = 2}}};
  const std::vector<float> weights = random_weights(config);
  const HostBatch batch = random_batch(config, step.sizes);
  const StepResult expected = step.run(weights, batch);
  for (const std::int64_t vocab : {1, 512, 1024, 5000}) {
    for (const std::int64_t tokens : {0, 33}) {
      step.strategy.loss_chunk_vocab = vocab;
      step.strategy.loss_chunk_tokens = tokens;
      expect_same_bits(step.run(weights, batch), expected, fmt::format("{} words, {} tokens", vocab, tokens));
    }
  }
}

// bf16 has 8 bits: one rounding is 2^-9 of a value. Those of many tokens cancel in the loss (bound: 5e-4 of
// it); a gradient has been through some tens (bound: 8 % of a parameter's, in the Euclidean norm).
TEST(Decoder, Bf16GivesTheSameBitsAlwaysAndIsNearF32) {
  for (const bool qwen3 : {true, false}) {
    const ModelConfig config = small_model(!qwen3, qwen3);
    SmallStep step{.config = config, .strategy = {.layers = kKeepAll}};
    // Both begin with the same weights.
    std::vector<float> weights = random_weights(config);
    for (float& weight : weights) weight = static_cast<float>(BFloat16(weight));
    const HostBatch batch = random_batch(config, step.sizes);
    const StepResult exact = step.run(weights, batch);
    step.strategy.compute_dtype = DType::bf16;
    const StepResult expected = step.run(weights, batch);
    EXPECT_EQ(expected.loss, expected.evaluated);
    EXPECT_NEAR(expected.loss, exact.loss, 5e-4 * exact.loss);
    const WorstDifference worst = worst_difference(config, expected.gradients, exact.gradients);
    EXPECT_LT(worst.relative, 0.08) << worst.parameter;
    for (const LayerPolicy& policy : policies()) {
      step.strategy.layers = policy;
      step.strategy.mlp_tile_tokens = 64 - step.strategy.mlp_tile_tokens;
      step.strategy.loss_chunk_tokens = 96 - step.strategy.loss_chunk_tokens;
      expect_same_bits(step.run(weights, batch), expected, to_text(policy));
    }
  }
}

// Tiles and chunks are summed in f32, from what is there, and rounded once: as many as there are, the same
// bits.
TEST(Decoder, SixteenBitGradientsDoNotDependOnTiles) {
  for (const bool tied : {true, false}) {
    const ModelConfig config = small_model(tied, true);
    SmallStep step{.config = config,
                   .strategy = {.layers = kKeepAll, .compute_dtype = DType::bf16},
                   .gradients_before = 0};
    const std::vector<float> weights = random_weights(config);
    const HostBatch batch = random_batch(config, step.sizes);
    const StepResult wide = rounded_to_bf16(step.run(weights, batch));
    step.strategy.state = StatePrecision::bf16;
    // A tied embedding is added to twice.
    const StepResult narrow = step.run(weights, batch);
    EXPECT_LT(worst_difference(config, narrow.gradients, wide.gradients).relative, tied ? 5e-3 : 1e-30);
    step.gradients_before = 0.37F;
    const StepResult expected = step.run(weights, batch);
    for (const std::int64_t tile : {7, 64, 1000}) {
      step.strategy.mlp_tile_tokens = tile;
      step.strategy.loss_chunk_tokens = tile;
      step.strategy.layers = {.recompute = 5};
      expect_same_bits(step.run(weights, batch), expected, fmt::format("{} tokens", tile));
    }
  }
}

TEST(Decoder, RefusesGradientsOfAnotherState) {
  const ModelConfig config = small_model(true, true);
  const Decoder decoder(config,
                        {.layers = kKeepAll, .compute_dtype = DType::bf16, .state = StatePrecision::bf16},
                        {.batch = 1, .context = 8}, {.causal = true});
  Context context(DeviceDescription{.name = "made up"});
  const TensorView ids(nullptr, DType::i32, {1, 8});
  const TensorView one(nullptr, DType::f32, {1});
  context.phase(Phase::step, [&] {
    const Shape flat{decoder.parameters().elements()};
    const Tensor weights = context.allocate({.name = "weights", .dtype = DType::bf16, .shape = flat});
    const Tensor gradients = context.allocate({.name = "gradients", .dtype = DType::f32, .shape = flat});
    EXPECT_THROW(
        decoder.train(context, {.tokens = ids, .labels = ids, .positions = ids, .document_starts = {}},
                      {.weights = weights, .gradients = gradients}, one, one),
        Error);
  });
}

// As wide as Llama-70B's MLP, and heads that are wider together than one pass of a product is deep.
TEST(Decoder, WideModelsGiveTheSameBitsToo) {
  ModelConfig config = small_model(true, true);
  config.hidden = 16;
  config.layers = 2;
  config.mlp = 28'672;
  config.heads_q = 136;
  config.heads_kv = 1;
  config.head_dim = 128;
  std::vector<float> weights = random_weights(config);
  for (float& weight : weights) weight = static_cast<float>(BFloat16(weight));
  SmallStep step{
      .config = config, .sizes = {.batch = 1, .context = 21}, .strategy = {.layers = {.keep_all = 2}}};
  const HostBatch batch = random_batch(config, step.sizes);
  const StepResult exact = step.run(weights, batch);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    step.strategy = {.layers = {.keep_all = 2}, .compute_dtype = dtype};
    const StepResult expected = step.run(weights, batch);
    EXPECT_NEAR(expected.loss, exact.loss, 5e-3 * exact.loss);
    EXPECT_LT(worst_difference(config, expected.gradients, exact.gradients).relative, 0.08);
    for (const LayerPolicy& policy :
         {LayerPolicy{.keep_attention = 2}, LayerPolicy{.recompute = 2, .input_every = 2},
          LayerPolicy{.keep_all = 1, .offload = 1}}) {
      for (const std::int64_t tile : {0, 4}) {
        step.strategy.layers = policy;
        step.strategy.mlp_tile_tokens = tile;
        step.threads = tile == 0 ? 1 : 3;
        expect_same_bits(step.run(weights, batch), expected, to_text(policy));
      }
    }
  }
}

TEST(Decoder, PackedDocumentsAreSeparateSequences) {
  const ModelConfig config = small_model(false, true);
  const std::vector<float> weights = random_weights(config);
  SmallStep step{.config = config,
                 .sizes = {.batch = 2, .context = 150, .max_documents = 5},
                 .strategy = {.layers = {.keep_all = 2, .recompute = 3, .input_every = 2}}};
  HostBatch packed = random_batch(config, step.sizes);
  // Ends of the documents; of the second sequence the last one is what its list leaves over.
  const std::vector<std::vector<std::int32_t>> ends = {{60, 61, 110, 150}, {33, 100, 150}};
  packed.document_starts = {0, 60, 61, 110, 150, 150, 0, 33, 100, 100, 100, 100};
  const auto counted = [](const std::vector<std::int32_t>& labels) {
    return static_cast<double>(labels.size()) - static_cast<double>(std::ranges::count(labels, -100));
  };
  std::vector<float> gradients(weights.size());
  double loss = 0;
  for (std::size_t row = 0; row < ends.size(); ++row) {
    std::int32_t begin = 0;
    for (const std::int32_t end : ends[row]) {
      const auto part = [&](const std::vector<std::int32_t>& values) {
        const auto first = values.begin() + static_cast<std::ptrdiff_t>(row) * 150;
        return std::vector<std::int32_t>(first + begin, first + end);
      };
      HostBatch alone{.tokens = part(packed.tokens), .labels = part(packed.labels), .positions = {}};
      alone.positions.resize(alone.tokens.size());
      std::iota(alone.positions.begin(), alone.positions.end(), 0);
      std::ranges::copy(alone.positions,
                        packed.positions.begin() + static_cast<std::ptrdiff_t>(row) * 150 + begin);
      const double share = counted(alone.labels) / counted(packed.labels);
      const StepResult result = SmallStep{.config = config,
                                          .sizes = {.batch = 1, .context = end - begin},
                                          .strategy = step.strategy,
                                          .loss_gradient = static_cast<float>(share)}
                                    .run(weights, alone);
      loss += share * result.loss;
      for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] += result.gradients[i];
      begin = end;
    }
  }
  const StepResult together = step.run(weights, packed);
  EXPECT_NEAR(together.loss, loss, 1e-6 * loss);
  const WorstDifference worst = worst_difference(config, together.gradients, gradients);
  EXPECT_LT(worst.relative, kRounding) << worst.parameter;
  // The boundaries matter: as one document the gradients are others.
  packed.document_starts = {0, 150, 150, 150, 150, 150, 0, 150, 150, 150, 150, 150};
  EXPECT_GT(worst_difference(config, step.run(weights, packed).gradients, gradients).relative, 0.05);
}

TEST(Decoder, ALayerThatSlidesSeesItsWindow) {
  ModelConfig config = small_model(true, true);
  const std::vector<float> weights = random_weights(config);
  SmallStep masked{.config = config, .strategy = {.layers = {.recompute = 5, .input_every = 2}}};
  masked.mask.window_left = 19;
  HostBatch batch = random_batch(config, masked.sizes);
  const StepResult expected = masked.run(weights, batch);

  // A window of 20 tokens, its own included, is 19 before it.
  SmallStep sliding = masked;
  sliding.mask.window_left = Mask::kUnlimited;
  sliding.config.sliding_window = 20;
  sliding.config.layer_attention = std::vector(5, AttentionKind::sliding);
  expect_same_bits(sliding.run(weights, batch), expected, "all layers slide");
  // The narrower of the two holds.
  sliding.config.sliding_window = 40;
  sliding.mask.window_left = 19;
  expect_same_bits(sliding.run(weights, batch), expected, "the mask is narrower");

  // Five windows of 19 reach 95 tokens back; one layer that sees everything reaches the first.
  sliding.mask.window_left = Mask::kUnlimited;
  sliding.config.sliding_window = 20;
  for (std::size_t i = 0; i < batch.labels.size(); ++i) {
    if (i % 150 < 96) batch.labels[i] = -100;
  }
  HostBatch other = batch;
  other.tokens[0] = (other.tokens[0] + 1) % 211;
  EXPECT_EQ(sliding.run(weights, batch).loss, sliding.run(weights, other).loss);
  for (std::size_t layer = 0; layer < 5; layer += 2) {
    sliding.config.layer_attention = std::vector(5, AttentionKind::sliding);
    sliding.config.layer_attention[layer] = AttentionKind::full;
    EXPECT_NE(sliding.run(weights, batch).loss, sliding.run(weights, other).loss) << "layer " << layer;
  }
}

TEST(Decoder, DilatedMasksGiveTheSameBitsToo) {
  const ModelConfig config = small_model(true, true);
  const std::vector<float> weights = random_weights(config);
  for (const bool mix : {false, true}) {
    SmallStep step{.config = config, .strategy = {.layers = kKeepAll}};
    step.mask.dilations[0] = {.segment = 32, .rate = 1};
    step.mask.dilations[1] = {.segment = 64, .rate = 2};
    step.mask.dilation_count = 2;
    step.mask.mix_dilations = mix;
    const HostBatch batch = random_batch(config, step.sizes);
    const StepResult expected = step.run(weights, batch);
    EXPECT_EQ(expected.loss, expected.evaluated);
    SmallStep dense = step;
    dense.mask = {.causal = true};
    EXPECT_NE(dense.run(weights, batch).loss, expected.loss);
    for (const LayerPolicy& policy : {policies()[0], policies()[3], policies()[6]}) {
      step.strategy.layers = policy;
      expect_same_bits(step.run(weights, batch), expected, to_text(policy));
    }
  }
}

TEST(Decoder, ThePadTokenLearnsAsAnOutputAlone) {
  for (const bool tied : {false, true}) {
    ModelConfig config = small_model(tied, true);
    const std::vector<float> weights = random_weights(config);
    SmallStep step{.config = config, .strategy = {.layers = kKeepAll}};
    const HostBatch batch = random_batch(config, step.sizes);
    const StepResult without = step.run(weights, batch);
    const std::int64_t pad_token = batch.tokens[5];
    step.config.pad_token = pad_token;
    const StepResult with = step.run(weights, batch);
    EXPECT_EQ(with.loss, without.loss);
    const auto begin = static_cast<std::size_t>(pad_token * config.hidden);  // the embedding comes first
    double left = 0;
    for (std::size_t i = 0; i < with.gradients.size(); ++i) {
      if (i - begin < static_cast<std::size_t>(config.hidden)) {
        EXPECT_NE(with.gradients[i], without.gradients[i]) << i;
        left += std::abs(with.gradients[i]);
      } else {
        ASSERT_EQ(with.gradients[i], without.gradients[i]) << i;
      }
    }
    EXPECT_EQ(left != 0, tied);
  }
}

TEST(Decoder, GradientsThatAreZeroNeedNotBeRead) {
  const ModelConfig config = small_model(true, true);
  const ParameterTable table(config);
  const auto first = static_cast<std::size_t>(table.at("model.layers.3.mlp.up_proj.weight").offset);
  const std::vector<float> weights = random_weights(config);
  for (const StatePrecision state : {StatePrecision::f32, StatePrecision::bf16}) {
    for (const std::int64_t tile : {0, 64}) {
      SmallStep step{.config = config,
                     .strategy = {.layers = {.keep_all = 2, .recompute = 3},
                                  .mlp_tile_tokens = tile,
                                  .compute_dtype = state == StatePrecision::f32 ? DType::f32 : DType::bf16,
                                  .state = state}};
      const HostBatch batch = random_batch(config, step.sizes);
      const StepResult read = step.run(weights, batch);
      step.gradients_are_zero = true;
      expect_same_bits(step.run(weights, batch), read, "told that they are zero");
      // What it was told is not true, and not looked at: all but norms and embedding is as if it were.
      step.gradients_before = 1;
      EXPECT_EQ(step.run(weights, batch).gradients[first], read.gradients[first]);
    }
  }
}

TEST(Decoder, GradientsAreAddedUp) {
  const ModelConfig config = small_model(true, false);
  const std::vector<float> weights = random_weights(config);
  SmallStep step{.config = config, .sizes = {.batch = 2, .context = 140}, .strategy = {.layers = kKeepAll}};
  const HostBatch both = random_batch(config, step.sizes);  // 20 labels of each row count for nothing
  const StepResult expected = step.run(weights, both);

  step.sizes.batch = 1;
  step.loss_gradient = 0.5F;
  std::vector<float> sum(weights.size());
  double loss = 0;
  for (const std::ptrdiff_t row : {0, 140}) {
    const auto part = [&](const std::vector<std::int32_t>& values) {
      return std::vector<std::int32_t>(values.begin() + row, values.begin() + row + 140);
    };
    const HostBatch half{
        .tokens = part(both.tokens), .labels = part(both.labels), .positions = part(both.positions)};
    const StepResult result = step.run(weights, half);
    loss += 0.5 * result.loss;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += result.gradients[i];
  }
  EXPECT_NEAR(expected.loss, loss, 1e-6 * loss);
  const WorstDifference worst = worst_difference(config, sum, expected.gradients);
  EXPECT_LT(worst.relative, kRounding) << worst.parameter;

  // What stands there already stays in the sum, between the parameters too.
  step.sizes.batch = 2;
  step.loss_gradient = 1;
  step.gradients_before = 0.25F;
  std::vector<float> more = step.run(weights, both).gradients;
  for (float& value : more) value -= 0.25F;
  EXPECT_LT(worst_difference(config, more, expected.gradients).relative, 1e-3);
}

// Rope is relative: a rank's slice that begins far out has the loss of one that begins at 0. Angles are made
// in double, so a million positions cost a few roundings of f32 more.
TEST(Decoder, ADistantSliceHasTheSameLoss) {
  for (const bool qwen3 : {true, false}) {
    const ModelConfig config = small_model(true, qwen3);
    const std::vector<float> weights = random_weights(config);
    const SmallStep step{.config = config, .strategy = {.layers = kKeepAll}};
    HostBatch batch = random_batch(config, step.sizes);
    const StepResult near = step.run(weights, batch);
    for (std::int32_t& position : batch.positions) position += 1'000'000;
    const StepResult far = step.run(weights, batch);
    EXPECT_NEAR(far.loss, near.loss, 2e-6 * near.loss);
    const WorstDifference worst = worst_difference(config, far.gradients, near.gradients);
    EXPECT_LT(worst.relative, 2e-5) << worst.parameter;
    EXPECT_NE(far.gradients, near.gradients);
    // Positions matter: twice as far apart is another loss.
    for (std::int32_t& position : batch.positions) position *= 2;
    EXPECT_GT(std::abs(step.run(weights, batch).loss - near.loss), 1e-3 * near.loss);
  }
}

TEST(Decoder, InspectSeesEveryLayer) {
  const ModelConfig config = small_model(true, true);
  std::vector<std::string> names;
  SmallStep step{.config = config, .strategy = {.layers = {.offload = 5}}};
  step.inspect = [&](std::string_view name, const TensorView& view) {
    names.emplace_back(name);
    EXPECT_EQ(view.shape(), (Shape{300, 48}));
    double sum = 0;
    for (std::int64_t i = 0; i < view.elements(); ++i) sum += std::abs(read_element(view, i));
    EXPECT_TRUE(std::isfinite(sum) && sum > 0) << name;
  };
  const std::vector<float> weights = random_weights(config);
  const HostBatch batch = random_batch(config, step.sizes);
  const StepResult inspected = step.run(weights, batch);
  EXPECT_EQ(names, (std::vector<std::string>{"embedding", "layer 0", "layer 1", "layer 2", "layer 3",
                                             "layer 4", "final norm"}));
  step.inspect = {};
  expect_same_bits(step.run(weights, batch), inspected, "without inspect");
}

// For every parameter, along a random direction: g . d against (loss(w + h d) - loss(w - h d)) / 2 h. The
// loss is f32, so a difference of 1e-2 is known to 1e-4 of itself.
void check_derivatives(SmallStep step, const HostBatch& batch) {
  step.strategy.layers = {.keep_attention = 1, .recompute = 1};
  const std::vector<float> weights = random_weights(step.config);
  const std::vector<float> gradients = step.run(weights, batch).gradients;
  const ParameterTable table(step.config);
  std::uint64_t stream = 0;
  for (const Parameter& parameter : table.entries()) {
    const Random random(3, ++stream);
    const auto first = static_cast<std::size_t>(parameter.offset);
    const auto count = static_cast<std::size_t>(parameter.shape.elements());
    double slope = 0;
    double norm = 0;
    std::vector<double> direction(count);
    for (std::size_t i = 0; i < count; ++i) norm += std::pow(static_cast<double>(gradients[first + i]), 2);
    norm = std::sqrt(norm);
    ASSERT_GT(norm, 0) << parameter.name;
    // Half of it along the gradient itself, so that the derivative is not small by chance.
    const double random_scale = 1 / std::sqrt(static_cast<double>(count));
    for (std::size_t i = 0; i < count; ++i) {
      direction[i] = gradients[first + i] / norm + random_scale * random.normal(i);
      slope += direction[i] * static_cast<double>(gradients[first + i]);
    }
    const double h = 0.02;
    const auto moved = [&](double by) {
      std::vector<float> other = weights;
      for (std::size_t i = 0; i < count; ++i) other[first + i] += static_cast<float>(by * direction[i]);
      return static_cast<double>(step.run(other, batch).loss);
    };
    const double difference = (moved(h) - moved(-h)) / (2 * h);
    EXPECT_NEAR(difference, slope, 0.004 * std::abs(slope) + 2e-5) << parameter.name;
  }
}

TEST(Decoder, GradientsAreTheLosssDerivatives) {
  for (const bool qwen3 : {true, false}) {
    ModelConfig config = small_model(qwen3, qwen3);
    config.layers = 2;
    const SmallStep step{.config = config, .sizes = {.batch = 1, .context = 41}};
    check_derivatives(step, random_batch(config, step.sizes));
  }
}

// Weights of queries, keys and values that do not lie side by side in the flat buffer.
TEST(Decoder, GradientsAreTheLosssDerivativesWithGapsBetweenWeights) {
  ModelConfig config = small_model(true, true);
  config.layers = 2;
  config.hidden = 10;
  config.heads_q = 3;
  config.heads_kv = 1;
  config.head_dim = 8;
  const ParameterTable table(config);
  ASSERT_NE(table.find(0, Weight::query)->offset + 240, table.find(0, Weight::key)->offset);
  const SmallStep step{.config = config, .sizes = {.batch = 2, .context = 23}};
  check_derivatives(step, random_batch(config, step.sizes));
}

TEST(Decoder, GradientsAreTheLosssDerivativesUnderMasks) {
  ModelConfig config = small_model(true, true);
  config.layers = 2;
  SmallStep step{.config = config, .sizes = {.batch = 1, .context = 41, .max_documents = 2}};
  step.mask.window_left = 11;
  HostBatch batch = random_batch(config, step.sizes);
  batch.document_starts = {0, 17, 41};
  check_derivatives(step, batch);
}

TEST(Decoder, RefusesBatchesAndSizesThatDoNotFit) {
  const ModelConfig config = small_model(true, true);
  const Strategy strategy{.layers = kKeepAll};
  const Mask causal{.causal = true};
  EXPECT_THROW(Decoder(config, strategy, {.batch = 0, .context = 8}, causal), Error);
  EXPECT_THROW(Decoder(config, strategy, {.batch = 1, .context = 0}, causal), Error);
  EXPECT_THROW(Decoder(config, {.layers = {.keep_all = 4}}, {.batch = 1, .context = 8}, causal), Error);
  // What the step does not do is refused, not left out.
  EXPECT_THROW(Decoder(config, {.layers = kKeepAll, .ring_ranks = 9}, {.batch = 1, .context = 8}, causal),
               Error);
  EXPECT_THROW(
      Decoder(config, {.layers = kKeepAll, .sharding = Sharding::full}, {.batch = 1, .context = 8}, causal),
      Error);
  EXPECT_THROW(
      Decoder(config, {.layers = kKeepAll, .compute_dtype = DType::f64}, {.batch = 1, .context = 8}, causal),
      Error);
  const std::vector<float> weights = random_weights(config);
  const SmallStep step{.config = config, .strategy = strategy};
  HostBatch batch = random_batch(config, step.sizes);
  batch.tokens[7] = 211;
  EXPECT_THROW(static_cast<void>(step.run(weights, batch)), Error);
  batch = random_batch(config, step.sizes);
  batch.labels[8] = -1;
  EXPECT_THROW(static_cast<void>(step.run(weights, batch)), Error);
}

}  // namespace
}  // namespace headroom
