#include "model/family.h"

#include <array>

namespace headroom {
namespace {

constexpr std::array kFamilies = {
    FamilyRow{
        .family = ModelFamily::qwen3,
        .model_type = "qwen3",
        .architecture = "Qwen3ForCausalLM",
        .norm = NormKind::pre_and_heads,
        .mlp = MlpKind::swiglu,
        .slides = true,
        .heads_divide_hidden = false,
        .defaults =
            {.vocab = 151'936, .mlp = 22'016, .max_positions = 32'768, .heads_kv = 32, .head_dim = 128}},
    FamilyRow{
        .family = ModelFamily::llama,
        .model_type = "llama",
        .architecture = "LlamaForCausalLM",
        .norm = NormKind::pre,
        .mlp = MlpKind::swiglu,
        .slides = false,
        .heads_divide_hidden = true,
        .defaults = {.vocab = 32'000, .mlp = 11'008, .max_positions = 2'048, .heads_kv = {}, .head_dim = {}}},
};

}  // namespace

std::span<const FamilyRow> model_families() {
  return kFamilies;
}

const FamilyRow& family_row(ModelFamily family) {
  return kFamilies[static_cast<std::size_t>(family)];
}

std::string_view name(ModelFamily family) {
  return family_row(family).model_type;
}

LayerSpec layer_spec(const ModelConfig& config, std::int64_t layer) {
  const FamilyRow& row = family_row(config.family);
  const bool listed = !config.layer_attention.empty();
  return {.attention = listed ? config.layer_attention[static_cast<std::size_t>(layer)] : AttentionKind::full,
          .norm = row.norm,
          .mlp = row.mlp};
}

}  // namespace headroom
