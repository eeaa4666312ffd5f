#include "model/layer.h"

#include "headroom/ops.h"

namespace headroom {

LayerWeights::LayerWeights(const ParameterTable& table, const FlatPart& flat, std::int64_t layer) {
  for (const WeightRow& row : layer_weights()) {
    const Parameter* parameter = table.find(layer, row.weight);
    if (parameter != nullptr) views_[static_cast<std::size_t>(row.weight)] = flat.of(*parameter);
  }
  const auto as_one_matrix = [&](std::initializer_list<Weight> weights) -> TensorView {
    const Parameter& first = *table.find(layer, *weights.begin());
    std::int64_t rows = 0;
    for (const Weight weight : weights) {
      const Parameter& part = *table.find(layer, weight);
      if (part.offset != first.offset + rows * first.shape[1]) return {};
      rows += part.shape[0];
    }
    return flat.values.slice(0, first.offset - flat.begin, rows * first.shape[1])
        .reshape({rows, first.shape[1]});
  };
  projections_ = as_one_matrix({Weight::query, Weight::key, Weight::value});
  gate_up_ = as_one_matrix({Weight::gate, Weight::up});
}

MlpWeights LayerWeights::mlp() const {
  return {.gate = (*this)[Weight::gate],
          .up = (*this)[Weight::up],
          .down = (*this)[Weight::down],
          .gate_up = gate_up_};
}

Tensor Layer::temporary(std::string_view name, Category category, const Shape& shape) const {
  return context_.allocate(
      {.name = name, .category = category, .dtype = step_.strategy.compute_dtype, .shape = shape});
}

void Layer::norm_input(LayerActivations& acts) const {
  using enum Activation;
  rms_norm_forward(context_,
                   {.x = acts[input],
                    .weight = weights_[Weight::norm1],
                    .y = make(acts, norm1),
                    .rstd = make(acts, norm1_rstd)},
                   static_cast<float>(step_.config.rms_epsilon));
}

void Layer::project(LayerActivations& acts, const Projection& projection) const {
  const Tensor& rotated = make(acts, projection.result);
  const bool normed = activation_row(projection.raw).exists(spec_);
  const Tensor& projected = normed ? make(acts, projection.raw) : rotated;
  matmul(context_, acts[Activation::norm1], weights_[projection.weight].transpose(0, 1), rows(projected));
  const RopeCall turn{step_.batch.positions.reshape({step_.tokens()}), step_.rope};
  if (normed) {
    rms_norm_rope_forward(context_,
                          {.x = heads(projected),
                           .weight = weights_[projection.norm],
                           .y = heads(rotated),
                           .rstd = make(acts, projection.rstd)},
                          static_cast<float>(step_.config.rms_epsilon), turn);
  } else {
    rope(context_, heads(rotated), turn.positions, turn.frequencies, Pass::forward);
  }
}

void Layer::attend(LayerActivations& acts, Keeping keeping) const {
  using enum Activation;
  const auto stage = context_.stage(StageKind::attention);
  norm_input(acts);
  for (const Projection& projection : kProjections) {
    project(acts, projection);
    acts.drop_unless_kept({projection.raw, projection.rstd}, keeping);
  }
  matmul(context_, acts[norm1], weights_[Weight::value].transpose(0, 1), rows(make(acts, value)));
  acts.drop_unless_kept({norm1, norm1_rstd}, keeping);
  if (!acts.has(output)) {
    make(acts, output);
    make(acts, lse);
    attention_forward(context_, attention_, acts);
  }
  acts.drop_unless_kept({query, key, value, lse}, keeping);
  // middle <- input + output Wo^T
  const Tensor& after = make(acts, middle);
  matmul_add(context_, rows(acts[output]), weights_[Weight::output].transpose(0, 1), acts[input], after);
  acts.drop_unless_kept({output}, keeping);
  rms_norm_forward(
      context_,
      {.x = after, .weight = weights_[Weight::norm2], .y = make(acts, norm2), .rstd = make(acts, norm2_rstd)},
      static_cast<float>(step_.config.rms_epsilon));
}

Tensor Layer::feed_forward(LayerActivations& acts, Keeping keeping) const {
  using enum Activation;
  const auto stage = context_.stage(StageKind::mlp);
  acts.drop_unless_kept({norm2_rstd}, keeping);
  // next <- middle + mlp
  MlpForward views{
      .x = acts[norm2], .weights = weights_.mlp(), .y = {}, .gate_up = {}, .residual = acts[middle]};
  if (keeps(keeping, gate_up)) views.gate_up = make(acts, gate_up);
  Tensor next = temporary("layer input", Category::activations, {step_.tokens(), step_.config.hidden});
  views.y = next;
  mlp_forward(context_, views, step_.strategy.mlp_tile_tokens);
  acts.drop_unless_kept({norm2, middle}, keeping);
  return next;
}

void Layer::project_backward(LayerActivations& acts, const Projection& projection, const TensorView& gradient,
                             const LayerWeights& gradients) const {
  const RopeCall turn{step_.batch.positions.reshape({step_.tokens()}), step_.rope};
  if (!activation_row(projection.raw).exists(spec_)) {
    acts.drop(projection.result);
    return rope(context_, heads(gradient), turn.positions, turn.frequencies, Pass::backward);
  }
  if (!acts.has(projection.raw)) project(acts, projection);
  acts.drop(projection.result);
  rms_norm_rope_backward(context_,
                         {.x = heads(acts[projection.raw]),
                          .weight = weights_[projection.norm],
                          .rstd = acts[projection.rstd],
                          .y_gradient = heads(gradient),
                          .x_gradient = heads(gradient),
                          .weight_gradient = gradients[projection.norm]},
                         Store::overwrite, turn);
  acts.drop(projection.raw);
  acts.drop(projection.rstd);
}

void Layer::unproject(const TensorView& x, const TensorView& projected, const TensorView& x_gradient,
                      const LayerWeights& gradients, bool gradients_are_zero) const {
  const auto through = [&](const TensorView& heads, const TensorView& weight,
                           const TensorView& weight_gradient, bool add) {
    matmul(context_, rows(heads).transpose(0, 1), x, weight_gradient, !gradients_are_zero);
    matmul(context_, rows(heads), weight, x_gradient, add);
  };
  if (weights_.projections().elements() > 0) {
    return through(projected, weights_.projections(), gradients.projections(), false);
  }
  std::int64_t begin = 0;
  for (const Weight weight : {Weight::query, Weight::key, Weight::value}) {
    const std::int64_t count = weights_[weight].extent(0) / step_.config.head_dim;
    through(projected.slice(2, begin, count), weights_[weight], gradients[weight], begin > 0);
    begin += count;
  }
}

void Layer::backward(LayerActivations& acts, const TensorView& gradient, const LayerWeights& gradients,
                     bool gradients_are_zero) const {
  using enum Activation;
  const Shape hidden_shape{step_.tokens(), step_.config.hidden};
  {
    const auto stage = context_.stage(StageKind::mlp);
    const Tensor norm2_gradient = temporary("norm 2 gradient", Category::activations, hidden_shape);
    MlpForward forward{.x = acts[norm2], .weights = weights_.mlp(), .y = {}, .gate_up = {}};
    if (acts.has(gate_up)) forward.gate_up = acts[gate_up];
    mlp_backward(context_,
                 {.forward = forward,
                  .y_gradient = gradient,
                  .x_gradient = norm2_gradient,
                  .gradients = gradients.mlp(),
                  .gradients_are_zero = gradients_are_zero},
                 step_.strategy.mlp_tile_tokens);
    acts.drop(gate_up);
    acts.drop(norm2);
    rms_norm_backward(context_,
                      {.x = acts[middle],
                       .weight = weights_[Weight::norm2],
                       .rstd = acts[norm2_rstd],
                       .y_gradient = norm2_gradient,
                       .x_gradient = gradient,
                       .weight_gradient = gradients[Weight::norm2]},
                      Store::add);
    acts.drop(middle);
    acts.drop(norm2_rstd);
  }
  const auto stage = context_.stage(StageKind::attention);
  // dWo <- dWo + gradient^T output, and what of it is the output's
  matmul(context_, gradient.transpose(0, 1), rows(acts[output]), gradients[Weight::output],
         !gradients_are_zero);
  Tensor output_gradient = temporary("output gradient", Category::attention, acts[output].view().shape());
  matmul(context_, gradient, weights_[Weight::output], rows(output_gradient));
  const std::int64_t heads_q = step_.config.heads_q;
  const std::int64_t heads_kv = step_.config.heads_kv;
  Tensor projected =
      temporary("query, key and value gradients", Category::attention,
                {step_.sizes.batch, step_.sizes.seq, heads_q + 2 * heads_kv, step_.config.head_dim});
  const TensorView query_gradient = projected.view().slice(2, 0, heads_q);
  const TensorView key_gradient = projected.view().slice(2, heads_q, heads_kv);
  const TensorView value_gradient = projected.view().slice(2, heads_q + heads_kv, heads_kv);
  attention_backward(
      context_, attention_, acts,
      {.output = output_gradient, .query = query_gradient, .key = key_gradient, .value = value_gradient});
  output_gradient.free();
  for (const Activation used : {value, output, lse}) acts.drop(used);
  if (!acts.has(norm1)) norm_input(acts);
  project_backward(acts, kProjections[0], query_gradient, gradients);
  project_backward(acts, kProjections[1], key_gradient, gradients);
  Tensor norm1_gradient = temporary("norm 1 gradient", Category::activations, hidden_shape);
  unproject(acts[norm1], projected, norm1_gradient, gradients, gradients_are_zero);
  projected.free();
  acts.drop(norm1);
  rms_norm_backward(context_,
                    {.x = acts[input],
                     .weight = weights_[Weight::norm1],
                     .rstd = acts[norm1_rstd],
                     .y_gradient = norm1_gradient,
                     .x_gradient = gradient,
                     .weight_gradient = gradients[Weight::norm1]},
                    Store::add);
  acts.drop(norm1_rstd);
  acts.drop(input);
}

}  // namespace headroom
