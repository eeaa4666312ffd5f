#include "model/layer_table.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <vector>

#include "model/family.h"
#include "model/layer.h"
#include "model/small_models.h"

namespace headroom {
namespace {

constexpr std::array kNorms = {NormKind::pre, NormKind::pre_and_heads};

ModelConfig two_layers(ModelFamily family) {
  ModelConfig config = small_model(false, family == ModelFamily::qwen3);
  config.layers = 2;
  return config;
}

TEST(ModelFamilies, EachHasItsRow) {
  std::set<std::string_view> types;
  for (const FamilyRow& row : model_families()) {
    EXPECT_EQ(&family_row(row.family), &row);
    EXPECT_EQ(name(row.family), row.model_type);
    EXPECT_TRUE(types.insert(row.model_type).second) << row.model_type;
    const ModelConfig config = two_layers(row.family);
    EXPECT_EQ(layer_spec(config, 1), (LayerSpec{.norm = row.norm, .mlp = row.mlp}));
    EXPECT_EQ(parse_model_config(to_json(config)), config);
  }
  ModelConfig sliding = two_layers(ModelFamily::qwen3);
  sliding.sliding_window = 8;
  sliding.layer_attention = {AttentionKind::full, AttentionKind::sliding};
  EXPECT_EQ(layer_spec(sliding, 0).attention, AttentionKind::full);
  EXPECT_EQ(layer_spec(sliding, 1).attention, AttentionKind::sliding);
}

// Every weight of the table, and of the flat buffer, is the one that the layer sees under its name.
TEST(LayerTable, ALayerSeesEveryWeight) {
  for (const FamilyRow& family : model_families()) {
    const ModelConfig config = two_layers(family.family);
    const ParameterTable table(config);
    std::vector<float> data(static_cast<std::size_t>(table.elements()));
    const TensorView flat(data.data(), DType::f32, {table.elements()});
    std::set<std::string> seen = {table.embedding().name, table.final_norm().name, table.output().name};
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      const LayerWeights weights(table, {.values = flat}, layer);
      for (const WeightRow& row : layer_weights()) {
        const std::string name = fmt::format("model.layers.{}.{}.weight", layer, row.name);
        const TensorView& view = weights[row.weight];
        if (!row.exists(layer_spec(config, layer))) {
          EXPECT_EQ(table.find(name), nullptr) << name;
          EXPECT_EQ(view.elements(), 0) << name;
          continue;
        }
        EXPECT_EQ(view.raw(), data.data() + table.at(name).offset) << name;
        EXPECT_EQ(view.shape(), row.shape(config)) << name;
        EXPECT_TRUE(seen.insert(name).second) << name;
      }
      EXPECT_EQ(weights.mlp().gate.raw(), weights[Weight::gate].raw());
      EXPECT_EQ(weights.mlp().up.raw(), weights[Weight::up].raw());
      EXPECT_EQ(weights.mlp().down.raw(), weights[Weight::down].raw());
      EXPECT_EQ(weights.mlp().gate_up.raw(), weights[Weight::gate].raw());
      EXPECT_EQ(weights.mlp().gate_up.shape(), (Shape{2 * config.mlp, config.hidden}));
    }
    EXPECT_EQ(seen.size(), table.entries().size()) << family.model_type;
  }
}

// A part of the flat buffer that begins with the layer, as ranks gather it, has the weights where they are in
// the whole buffer; those of queries, keys and values together too.
TEST(LayerTable, ALayerSeesItsWeightsInAPartOfTheBuffer) {
  for (const FamilyRow& family : model_families()) {
    const ParameterTable table(two_layers(family.family));
    std::vector<float> data(static_cast<std::size_t>(table.elements()));
    const TensorView flat(data.data(), DType::f32, {table.elements()});
    const std::int64_t begin = table.find(1, Weight::norm1)->offset;
    const LayerWeights whole(table, {.values = flat}, 1);
    const LayerWeights part(table, {.values = flat.slice(0, begin, table.elements() - begin), .begin = begin},
                            1);
    for (const WeightRow& row : layer_weights()) {
      EXPECT_EQ(part[row.weight].raw(), whole[row.weight].raw()) << row.name;
      EXPECT_EQ(part[row.weight].shape(), whole[row.weight].shape()) << row.name;
    }
    EXPECT_EQ(part.projections().raw(), whole.projections().raw());
    EXPECT_EQ(part.projections().shape(), whole.projections().shape());
    EXPECT_EQ(part.projections().raw(), part[Weight::query].raw());
  }
}

TEST(LayerTable, TheOutputIsTheEmbeddingWhereTheyAreTied) {
  ModelConfig config = two_layers(ModelFamily::llama);
  EXPECT_EQ(ParameterTable(config).output().name, "lm_head.weight");
  config.tied_embeddings = true;
  EXPECT_EQ(ParameterTable(config).output().name, "model.embed_tokens.weight");
}

TEST(LayerTable, TheKindOfNormSaysWhichWeightsThereAre) {
  for (const WeightRow& row : layer_weights()) {
    const bool of_heads = row.weight == Weight::query_norm || row.weight == Weight::key_norm;
    for (const NormKind norm : kNorms) {
      EXPECT_EQ(row.exists({.norm = norm}), !of_heads || norm == NormKind::pre_and_heads) << row.name;
    }
  }
}

// A layer makes what its spec has, whatever the family: on a phantom, keeping everything.
TEST(LayerTable, ALayerMakesWhatItsSpecHas) {
  for (const FamilyRow& family : model_families()) {
    for (const NormKind norm : kNorms) {
      const ModelConfig config = two_layers(family.family);
      const LayerSpec spec{.norm = norm};
      const RankSizes sizes{.batch = 1, .seq = 32};
      const Strategy strategy{};
      const RopeFrequencies rope = rope_frequencies(config.rope, config.head_dim);
      const StepBatch batch{.tokens = {},
                            .labels = {},
                            .positions = TensorView(nullptr, DType::i32, {1, 32}),
                            .document_starts = {}};
      // With weights of every kind of layer at hand.
      const ParameterTable table(two_layers(ModelFamily::qwen3));
      const LayerWeights weights(table, {.values = TensorView(nullptr, DType::f32, {table.elements()})}, 0);
      const LayerStep step{config, sizes, strategy, rope, batch};
      Context context(DeviceDescription{});
      context.phase(Phase::forward, [&] {
        LayerActivations acts;
        acts.make(context, Activation::input, config, sizes, DType::f32);
        const LayerAttention attention{
            .problem = whole_attention(config, DType::f32, {.batch = 1, .context = 32}, {.causal = true})};
        const Layer layer(context, step, spec, weights, attention);
        layer.attend(acts, Keeping::all);
        const Tensor next = layer.feed_forward(acts, Keeping::all);
        for (std::size_t i = 0; i < kActivations; ++i) {
          const auto activation = static_cast<Activation>(i);
          const ActivationRow& row = activation_row(activation);
          EXPECT_EQ(acts.has(activation), row.exists(spec)) << row.name;
        }
      });
    }
  }
}

}  // namespace
}  // namespace headroom
