#include "model/layer_table.h"

#include <algorithm>
#include <array>

namespace headroom {
namespace {

bool always(const LayerSpec&) {
  return true;
}
bool with_head_norms(const LayerSpec& spec) {
  return spec.norm == NormKind::pre_and_heads;
}

Shape hidden_weight(const ModelConfig& config) {
  return {config.hidden};
}
Shape head_weight(const ModelConfig& config) {
  return {config.head_dim};
}
Shape query_weight(const ModelConfig& config) {
  return {config.heads_q * config.head_dim, config.hidden};
}
Shape key_weight(const ModelConfig& config) {
  return {config.heads_kv * config.head_dim, config.hidden};
}
Shape output_weight(const ModelConfig& config) {
  return {config.hidden, config.heads_q * config.head_dim};
}
Shape up_weight(const ModelConfig& config) {
  return {config.mlp, config.hidden};
}
Shape down_weight(const ModelConfig& config) {
  return {config.hidden, config.mlp};
}

constexpr std::array<WeightRow, kLayerWeights> kWeightRows = {{
    {Weight::norm1, "input_layernorm", hidden_weight, false, always},
    {Weight::query, "self_attn.q_proj", query_weight, true, always},
    {Weight::key, "self_attn.k_proj", key_weight, true, always},
    {Weight::value, "self_attn.v_proj", key_weight, true, always},
    {Weight::output, "self_attn.o_proj", output_weight, true, always},
    {Weight::query_norm, "self_attn.q_norm", head_weight, false, with_head_norms},
    {Weight::key_norm, "self_attn.k_norm", head_weight, false, with_head_norms},
    {Weight::norm2, "post_attention_layernorm", hidden_weight, false, always},
    {Weight::gate, "mlp.gate_proj", up_weight, true, always},
    {Weight::up, "mlp.up_proj", up_weight, true, always},
    {Weight::down, "mlp.down_proj", down_weight, true, always},
}};

std::int64_t tokens(const RankSizes& sizes) {
  return sizes.tokens();
}

Shape hidden_shape(const ModelConfig& config, const RankSizes& sizes) {
  return {tokens(sizes), config.hidden};
}
Shape row_shape(const ModelConfig&, const RankSizes& sizes) {
  return {tokens(sizes)};
}
Shape query_shape(const ModelConfig& config, const RankSizes& sizes) {
  return {sizes.batch, sizes.seq, config.heads_q, config.head_dim};
}
Shape key_shape(const ModelConfig& config, const RankSizes& sizes) {
  return {sizes.batch, sizes.seq, config.heads_kv, config.head_dim};
}
Shape query_rows(const ModelConfig& config, const RankSizes& sizes) {
  return {tokens(sizes), config.heads_q};
}
Shape key_rows(const ModelConfig& config, const RankSizes& sizes) {
  return {tokens(sizes), config.heads_kv};
}
Shape lse_shape(const ModelConfig& config, const RankSizes& sizes) {
  return {sizes.batch, config.heads_q, sizes.seq};
}
Shape gate_up_shape(const ModelConfig& config, const RankSizes& sizes) {
  return {tokens(sizes), 2 * config.mlp};
}

constexpr Category kLayer = Category::activations;
constexpr Category kAttention = Category::attention;

constexpr std::array<ActivationRow, kActivations> kActivationRows = {{
    {Activation::input, "layer input", kLayer, false, hidden_shape, always, ActivationKind::attention},
    {Activation::norm1, "norm 1", kLayer, false, hidden_shape, always, ActivationKind::projection},
    {Activation::norm1_rstd, "norm 1 rstd", kLayer, true, row_shape, always, ActivationKind::projection},
    {Activation::query_raw, "query before norm", kAttention, false, query_shape, with_head_norms,
     ActivationKind::projection},
    {Activation::query_rstd, "query rstd", kAttention, true, query_rows, with_head_norms,
     ActivationKind::projection},
    {Activation::key_raw, "key before norm", kAttention, false, key_shape, with_head_norms,
     ActivationKind::projection},
    {Activation::key_rstd, "key rstd", kAttention, true, key_rows, with_head_norms,
     ActivationKind::projection},
    {Activation::query, "query", kAttention, false, query_shape, always, ActivationKind::other},
    {Activation::key, "key", kAttention, false, key_shape, always, ActivationKind::other},
    {Activation::value, "value", kAttention, false, key_shape, always, ActivationKind::other},
    {Activation::output, "attention output", kAttention, false, query_shape, always,
     ActivationKind::attention},
    {Activation::lse, "attention lse", kAttention, true, lse_shape, always, ActivationKind::attention},
    {Activation::middle, "after attention", kLayer, false, hidden_shape, always, ActivationKind::other},
    {Activation::norm2, "norm 2", kLayer, false, hidden_shape, always, ActivationKind::other},
    {Activation::norm2_rstd, "norm 2 rstd", kLayer, true, row_shape, always, ActivationKind::other},
    {Activation::gate_up, "mlp gate and up", kLayer, false, gate_up_shape, always, ActivationKind::tile},
}};

// Rows are found by their place.
static_assert([] {
  for (std::size_t i = 0; i < kLayerWeights; ++i) {
    if (kWeightRows[i].weight != static_cast<Weight>(i)) return false;
  }
  for (std::size_t i = 0; i < kActivations; ++i) {
    if (kActivationRows[i].activation != static_cast<Activation>(i)) return false;
  }
  return true;
}());

}  // namespace

std::span<const WeightRow> layer_weights() {
  return kWeightRows;
}

const ActivationRow& activation_row(Activation activation) {
  return kActivationRows[static_cast<std::size_t>(activation)];
}

}  // namespace headroom
