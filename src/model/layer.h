// One layer of the decoder, forward and backward.
//
//   middle <- input + attention(rope(norm(norm1 Wq^T)), rope(norm(norm1 Wk^T)), norm1 Wv^T) Wo^T
//   next   <- middle + mlp(norm2)
#pragma once

#include "headroom/model/decoder.h"
#include "headroom/ops/mlp.h"
#include "model/layer_attention.h"
#include "model/unit_weights.h"

namespace headroom {

// A layer's parameters in a flat buffer, or in a part of one that has them: its weights, or their gradients.
class LayerWeights {
 public:
  LayerWeights(const ParameterTable& table, const FlatPart& flat, std::int64_t layer);

  // Empty where the layer does not have the weight.
  [[nodiscard]] const TensorView& operator[](Weight weight) const {
    return views_[static_cast<std::size_t>(weight)];
  }
  [[nodiscard]] MlpWeights mlp() const;
  // Those of queries, keys and values as one matrix, [all heads * head_dim, hidden]; empty where the table
  // has a gap between them.
  [[nodiscard]] const TensorView& projections() const { return projections_; }

 private:
  std::array<TensorView, kLayerWeights> views_;
  TensorView projections_;
  TensorView gate_up_;  // likewise
};

// What all layers of a step share.
struct LayerStep {
  const ModelConfig& config;
  RankSizes sizes;
  const Strategy& strategy;
  const RopeFrequencies& rope;
  const StepBatch& batch;

  [[nodiscard]] std::int64_t tokens() const { return sizes.tokens(); }
};

class Layer {
 public:
  Layer(Context& context, const LayerStep& step, const LayerSpec& spec, const LayerWeights& weights,
        const LayerAttention& attention)
      : context_(context), step_(step), spec_(spec), weights_(weights), attention_(attention) {}

  // From the input to norm2. Attention itself is left out where its output is there. Drops on the way what
  // the way of keeping does not keep and nothing later needs.
  void attend(LayerActivations& acts, Keeping keeping) const;
  // From norm2 to the next layer's input. Drops the rest.
  [[nodiscard]] Tensor feed_forward(LayerActivations& acts, Keeping keeping) const;

  // gradient [tokens, hidden]: of the next layer's input on entry, of this layer's on return. Everything that
  // attend makes is there, and is dropped when it has been used. Products are added to the gradients of
  // weights, or overwrite them where they are zero.
  void backward(LayerActivations& acts, const TensorView& gradient, const LayerWeights& gradients,
                bool gradients_are_zero) const;

 private:
  const Tensor& make(LayerActivations& acts, Activation activation) const {
    return acts.make(context_, activation, step_.config, step_.sizes, step_.strategy.compute_dtype);
  }
  [[nodiscard]] Tensor temporary(std::string_view name, Category category, const Shape& shape) const;
  // What becomes of norm1 before attention reads it.
  struct Projection {
    Weight weight;
    Weight norm;
    Activation raw;  // does not exist in a layer without norms of heads
    Activation rstd;
    Activation result;
  };
  static constexpr std::array kProjections = {
      Projection{Weight::query, Weight::query_norm, Activation::query_raw, Activation::query_rstd,
                 Activation::query},
      Projection{Weight::key, Weight::key_norm, Activation::key_raw, Activation::key_rstd, Activation::key}};

  void norm_input(LayerActivations& acts) const;
  // result <- rope(norm(norm1 weight^T))
  void project(LayerActivations& acts, const Projection& projection) const;
  // gradient <- that of the raw projection, from that of the result. Makes the raw projection again where it
  // is not there; drops the result.
  void project_backward(LayerActivations& acts, const Projection& projection, const TensorView& gradient,
                        const LayerWeights& gradients) const;
  // x_gradient, and those of the weights, from the gradients of the raw projections, whose heads lie side by
  // side: one product each where the weights do so too.
  void unproject(const TensorView& x, const TensorView& projected, const TensorView& x_gradient,
                 const LayerWeights& gradients, bool gradients_are_zero) const;
  // [batch, seq, heads, head_dim] as [tokens, heads, head_dim], and as [tokens, heads * head_dim].
  [[nodiscard]] static TensorView heads(const TensorView& view) { return view.merge(0); }
  [[nodiscard]] static TensorView rows(const TensorView& view) { return view.merge(2).merge(0); }

  Context& context_;
  const LayerStep& step_;
  LayerSpec spec_;
  const LayerWeights& weights_;
  const LayerAttention& attention_;
};

}  // namespace headroom
