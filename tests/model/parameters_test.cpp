#include "headroom/model/parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "model/host_tensors.h"

namespace headroom {
namespace {

TEST(ParameterTable, CountsWhatTheMakersPublished) {
  const std::map<std::string_view, std::int64_t> published = {
      {"qwen3-0.6b", 596'049'920},  {"qwen3-1.7b", 1'720'574'976}, {"qwen3-4b", 4'022'468'096},
      {"qwen3-8b", 8'190'735'360},  {"qwen3-14b", 14'768'307'200}, {"qwen3-32b", 32'762'123'264},
      {"llama3-8b", 8'030'261'248}, {"llama3-70b", 70'553'706'496}};
  for (const auto& [name, parameters] : published) {
    EXPECT_EQ(ParameterTable(built_in_model(name)).parameters(), parameters) << name;
  }
}

TEST(ParameterTable, HasHuggingFacesNames) {
  ModelConfig config = built_in_model("demo");
  config.layers = 1;
  config.vocab = 512;
  config.head_dim = 64;
  const ParameterTable tied(config);
  std::vector<std::string> names;
  for (const Parameter& parameter : tied.entries()) names.push_back(parameter.name);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
                       "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
                       "model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.o_proj.weight",
                       "model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.k_norm.weight",
                       "model.layers.0.post_attention_layernorm.weight",
                       "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight",
                       "model.layers.0.mlp.down_proj.weight", "model.norm.weight"}));
  EXPECT_EQ(tied.at("model.layers.0.self_attn.q_proj.weight").shape, (Shape{128, 128}));
  EXPECT_EQ(tied.at("model.layers.0.self_attn.k_proj.weight").shape, (Shape{64, 128}));
  EXPECT_EQ(tied.at("model.layers.0.self_attn.o_proj.weight").shape, (Shape{128, 128}));
  EXPECT_EQ(tied.at("model.layers.0.self_attn.k_norm.weight").shape, (Shape{64}));
  EXPECT_EQ(tied.at("model.layers.0.mlp.down_proj.weight").shape, (Shape{128, 256}));
  EXPECT_TRUE(tied.at("model.embed_tokens.weight").decays);
  EXPECT_FALSE(tied.at("model.norm.weight").decays);
  EXPECT_FALSE(tied.at("model.layers.0.self_attn.q_norm.weight").decays);

  config.tied_embeddings = false;
  config.family = ModelFamily::llama;
  const ParameterTable untied(config);
  EXPECT_EQ(untied.at("lm_head.weight").shape, (Shape{512, 128}));
  EXPECT_EQ(untied.find("model.layers.0.self_attn.q_norm.weight"), nullptr);
  EXPECT_THROW(static_cast<void>(untied.at("model.layers.1.input_layernorm.weight")), Error);
}

TEST(ParameterTable, AlignsAndPads) {
  ModelConfig config = built_in_model("demo");
  config.hidden = 10;
  config.vocab = 7;
  config.head_dim = 8;
  const ParameterTable table(config);
  std::int64_t last_end = 0;
  for (const Parameter& parameter : table.entries()) {
    EXPECT_EQ(parameter.offset % ParameterTable::kAlignment, 0) << parameter.name;
    EXPECT_GE(parameter.offset, last_end);
    EXPECT_LT(parameter.offset - last_end, ParameterTable::kAlignment);
    last_end = parameter.offset + parameter.shape.elements();
  }
  EXPECT_EQ(table.elements() % ParameterTable::kAlignment, 0);
  EXPECT_LT(table.elements() - last_end, ParameterTable::kAlignment);

  std::vector<float> data(static_cast<std::size_t>(table.elements()), 0.0F);
  const TensorView flat(data.data(), DType::f32, {table.elements()});
  for (const Parameter& parameter : table.entries()) {
    const TensorView view = table.view(flat, parameter);
    EXPECT_EQ(view.shape(), parameter.shape);
    std::fill_n(view.data<float>(), view.elements(), 1.0F);
  }
  EXPECT_EQ(std::ranges::count(data, 1.0F), table.parameters());
  std::ranges::fill(data, 2.0F);
  run_rehearsed([&](Context& context) {
    context.phase(Phase::load, [&] {
      const Tensor tensor = context.allocate({.name = "flat", .shape = {table.elements()}});
      Staging staging(context);
      staging.upload(tensor, bytes_of(flat));
      table.clear_padding(tensor, staging);
      staging.download(bytes_of(flat), tensor);
    });
  });
  EXPECT_EQ(std::ranges::count(data, 2.0F), table.parameters());
  EXPECT_EQ(std::ranges::count(data, 0.0F), table.elements() - table.parameters());
}

TEST(ParameterTable, ViewsPhantomsAndRefusesOtherBuffers) {
  const ParameterTable table(built_in_model("qwen3-8b"));
  const TensorView phantom(nullptr, DType::bf16, {table.elements()});
  EXPECT_EQ(table.view(phantom, table.entries().back()).shape(), (Shape{151936, 4096}));
  EXPECT_EQ(table.view(phantom, table.entries().back()).raw(), nullptr);
  const TensorView shorter(nullptr, DType::bf16, {table.elements() - 64});
  EXPECT_THROW(static_cast<void>(table.view(shorter, table.entries().front())), Error);
  EXPECT_THROW(ParameterTable(ModelConfig{}), Error);
}

}  // namespace
}  // namespace headroom
