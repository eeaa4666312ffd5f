#include "model/activations.h"

#include <utility>

namespace headroom {

bool keeps(Keeping keeping, Activation activation) {
  const ActivationKind kind = activation_row(activation).kind;
  switch (keeping) {
    case Keeping::all: return true;
    case Keeping::attention: return kind == ActivationKind::attention;
    case Keeping::input: return activation == Activation::input;
    case Keeping::nothing: return false;
    case Keeping::rebuild: return kind != ActivationKind::tile;
    case Keeping::rebuild_without_projections:
      return kind != ActivationKind::tile && kind != ActivationKind::projection;
  }
  return false;
}

const Tensor& LayerActivations::make(Context& context, Activation activation, const ModelConfig& config,
                                     const RankSizes& sizes, DType dtype) {
  if (!has(activation)) {
    const ActivationRow& what = activation_row(activation);
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
