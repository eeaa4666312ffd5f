#include "model/activations.h"

#include <utility>

namespace headroom {
namespace {

std::int64_t tokens(const StepSizes& sizes) {
  return sizes.batch * sizes.seq;
}

Shape hidden_shape(const ModelConfig& config, const StepSizes& sizes) {
  return {tokens(sizes), config.hidden};
}
Shape row_shape(const ModelConfig&, const StepSizes& sizes) {
  return {tokens(sizes)};
}
Shape query_shape(const ModelConfig& config, const StepSizes& sizes) {
  return {tokens(sizes), config.heads_q, config.head_dim};
}
Shape key_shape(const ModelConfig& config, const StepSizes& sizes) {
  return {tokens(sizes), config.heads_kv, config.head_dim};
}
Shape query_rows(const ModelConfig& config, const StepSizes& sizes) {
  return {tokens(sizes), config.heads_q};
}
Shape key_rows(const ModelConfig& config, const StepSizes& sizes) {
  return {tokens(sizes), config.heads_kv};
}
Shape lse_shape(const ModelConfig& config, const StepSizes& sizes) {
  return {sizes.batch, config.heads_q, sizes.seq};
}
Shape mlp_shape(const ModelConfig& config, const StepSizes& sizes) {
  return {tokens(sizes), config.mlp};
}

constexpr Category kLayer = Category::activations;
constexpr Category kAttention = Category::attention;

// In the order in which a layer makes them.
constexpr std::array<ActivationRow, kActivations> kTable = {{
    {Activation::input, "layer input", kLayer, false, hidden_shape, true, false},
    {Activation::norm1, "norm 1", kLayer, false, hidden_shape, false, false},
    {Activation::norm1_rstd, "norm 1 rstd", kLayer, true, row_shape, false, false},
    {Activation::query_raw, "query before norm", kAttention, false, query_shape, false, false},
    {Activation::query_rstd, "query rstd", kAttention, true, query_rows, false, false},
    {Activation::key_raw, "key before norm", kAttention, false, key_shape, false, false},
    {Activation::key_rstd, "key rstd", kAttention, true, key_rows, false, false},
    {Activation::query, "query", kAttention, false, query_shape, false, false},
    {Activation::key, "key", kAttention, false, key_shape, false, false},
    {Activation::value, "value", kAttention, false, key_shape, false, false},
    {Activation::output, "attention output", kAttention, false, query_shape, true, false},
    {Activation::lse, "attention lse", kAttention, true, lse_shape, true, false},
    {Activation::middle, "after attention", kLayer, false, hidden_shape, false, false},
    {Activation::norm2, "norm 2", kLayer, false, hidden_shape, false, false},
    {Activation::norm2_rstd, "norm 2 rstd", kLayer, true, row_shape, false, false},
    {Activation::gate, "mlp gate", kLayer, false, mlp_shape, false, true},
    {Activation::up, "mlp up", kLayer, false, mlp_shape, false, true},
}};

const ActivationRow& row(Activation activation) {
  return kTable[static_cast<std::size_t>(activation)];
}

}  // namespace

bool keeps(Keeping keeping, Activation activation) {
  switch (keeping) {
    case Keeping::all: return true;
    case Keeping::attention: return row(activation).attention;
    case Keeping::input: return activation == Activation::input;
    case Keeping::nothing: return false;
    case Keeping::rebuild: return !row(activation).tile;
  }
  return false;
}

const Tensor& LayerActivations::make(Context& context, Activation activation, const ModelConfig& config,
                                     const StepSizes& sizes, DType dtype) {
  if (!has(activation)) {
    const ActivationRow& what = row(activation);
    put(activation, context.allocate({.name = what.name,
                                      .category = what.category,
                                      .dtype = what.statistics ? DType::f32 : dtype,
                                      .shape = what.shape(config, sizes)}));
  }
  return tensors_[index(activation)];
}

void LayerActivations::put(Activation activation, Tensor tensor) {
  tensors_[index(activation)] = std::move(tensor);
  live_[index(activation)] = true;
}

Tensor LayerActivations::take(Activation activation) {
  live_[index(activation)] = false;
  return std::move(tensors_[index(activation)]);
}

void LayerActivations::drop(Activation activation) {
  if (has(activation)) take(activation).free();
}

void LayerActivations::drop_unless_kept(std::initializer_list<Activation> activations, Keeping keeping) {
  for (const Activation activation : activations) {
    if (!keeps(keeping, activation)) drop(activation);
  }
}

}  // namespace headroom
