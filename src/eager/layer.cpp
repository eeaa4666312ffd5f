#include "eager/layer.h"

#include <algorithm>
#include <utility>

#include "headroom/core/checked.h"

namespace headroom {

Tensor EagerRmsNorm::forward(bool saves, Tensor input) {
  input_ = widens() ? wide("x.float()") : std::move(input);
  Tensor squares = wide("x.pow(2)");
  Tensor variance = row("mean");
  drop(squares);
  Tensor shifted = row("mean + eps");
  rstd_ = row("rsqrt(mean + eps)");
  drop(shifted);
  Tensor normed = wide("x * rsqrt");
  if (!saves) drop(rstd_, input_);
  if (widens()) {
    normed_ = narrow("normed.to(dtype)");
  } else {
    normed_ = std::move(normed);
  }
  Tensor result = narrow("weight * normed");
  if (!saves) drop(normed_);
  return result;
}

// A sum over rows is split over blocks of 32 x 4 threads, up to 16 a multiprocessor, and more where a thread
// would have over 256 values; each block leaves a partial result per thread and output.
Tensor EagerRmsNorm::partial_sums() const {
  const std::int64_t values = divide_up(rows_, 4);
  const std::int64_t per_multiprocessor =
      divide_up(16 * std::int64_t{shared_.program.context().description().cores}, divide_up(width_, 128));
  const std::int64_t blocks =
      std::max(std::min(per_multiprocessor, divide_up(values, 16)), divide_up(values, 256));
  return shared_.program.make("partial sums", Category::workspace, DType::f32, {blocks, 128, width_});
}

Tensor EagerRmsNorm::backward(Tensor gradient) {
  // weight * normed
  Tensor normed_gradient = narrow("grad * weight");
  Tensor product = narrow("grad * normed");
  drop(normed_);
  shared_.gradients.push_back(shared_.program.make("norm weight gradient", Category::gradients,
                                                   shared_.options.parameter_dtype(), {width_}));
  (void)partial_sums();
  drop(product, gradient);
  // .to(dtype)
  if (widens()) normed_gradient = wide("grad.float()");
  // x * rsqrt
  Tensor per_element = wide("grad * x");
  Tensor input_gradient = wide("grad * rsqrt");
  Tensor rstd_gradient = row("gradient of rsqrt");
  drop(per_element, normed_gradient);
  // rsqrt: -0.5 * grad * rsqrt^3
  Tensor half = row("-0.5 * grad");
  Tensor cube = row("rsqrt.pow(3)");
  Tensor mean_gradient = row("gradient of mean");
  drop(cube, half, rstd_, rstd_gradient);
  // mean, then pow(2): grad * (2 * x.pow(1))
  Tensor squares_gradient = wide("grad.expand / width");
  drop(mean_gradient);
  Tensor power = wide("x.pow(1)");
  Tensor twice = wide("2 * x.pow(1)");
  Tensor through_mean = wide("grad * 2 x");
  drop(twice, power, input_, squares_gradient);
  drop(through_mean);  // added to input_gradient in place
  if (!widens()) return input_gradient;
  return narrow("grad.to(dtype)");
}

EagerLayer::EagerLayer(const EagerStepShared& shared, const LayerSpec& spec)
    : shared_(shared),
      queries_(shared.config.heads_q * shared.config.head_dim),
      keys_(shared.config.heads_kv * shared.config.head_dim),
      norm1_(shared, shared.tokens(), shared.config.hidden),
      norm2_(shared, shared.tokens(), shared.config.hidden) {
  const ModelConfig& config = shared.config;
  if (spec.norm == NormKind::pre_and_heads) {
    query_norm_.emplace(shared, shared.tokens() * config.heads_q, config.head_dim);
    key_norm_.emplace(shared, shared.tokens() * config.heads_kv, config.head_dim);
  }
  const EagerAttentionShape shape{.batch = shared.sizes.batch,
                                  .seq = shared.sizes.context,
                                  .heads_q = config.heads_q,
                                  .heads_kv = config.heads_kv,
                                  .head_dim = config.head_dim,
                                  .dtype = shared.options.dtype};
  // No fused kernel takes f32 with shared key heads: there scaled_dot_product_attention is PyTorch's own
  // composition of operators, which is the naive form.
  const bool fused = shape.dtype != DType::f32 || shape.heads_q == shape.heads_kv;
  if (shared.options.attention == EagerAttention::sdpa && fused) {
    sdpa_.emplace(shared.program, shape);
  } else {
    naive_.emplace(shared.program, shape, true);
  }
}

// x * cos + rotate_half(x) * sin; cos and sin need no gradient, so nothing but them is saved.
Tensor EagerLayer::rotate(std::string_view name, std::int64_t width) const {
  const Tensor with_cos = shared_.make("x * cos", width);
  Tensor negated = shared_.make("-second half", width / 2);
  Tensor rotated = shared_.make("rotate_half", width);
  drop(negated);
  const Tensor with_sin = shared_.make("rotate_half * sin", width);
  drop(rotated);
  return shared_.make(name, width);
}

Tensor EagerLayer::rotate_backward(Tensor gradient, std::int64_t width) const {
  Tensor rotated = shared_.make("grad * sin", width);
  Tensor negated = shared_.make("-first half", width / 2);
  Tensor result = shared_.make("gradient of the second half", width);
  drop(negated);
  Tensor first = shared_.make("gradient of the first half", width);
  drop(rotated, first);  // added in place
  (void)shared_.make("grad * cos", width);
  drop(gradient);
  return result;
}

Tensor EagerLayer::attend(bool saves) {
  const auto project = [&](std::string_view name, std::int64_t width,
                           std::optional<EagerRmsNorm>& norm) -> Tensor {
    shared_.program.product_in_forward();
    Tensor raw = shared_.make(name, width);
    if (!norm) return raw;
    return norm->forward(saves, std::move(raw));
  };
  Tensor query = project("q_proj", queries_, query_norm_);
  Tensor key = project("k_proj", keys_, key_norm_);
  value_ = shared_.make("v_proj", keys_);
  query_ = rotate("query with rope", queries_);
  key_ = rotate("key with rope", keys_);
  drop(query, key);
  if (sdpa_) {
    sdpa_->forward();
    if (!saves) sdpa_->drop_rows();
  } else if (naive_) {
    attended_ = naive_->forward();
    if (!saves) naive_->drop_saved();
  }
  Tensor projected = shared_.hidden("o_proj");  // saves its input
  if (!saves) {
    drop(attended_, query_, key_, value_, normed1_);
    if (sdpa_) sdpa_->drop_saved();
  }
  return projected;
}

Tensor EagerLayer::forward(Mode mode) {
  const bool saves = mode != Mode::without_graph;
  normed1_ = norm1_.forward(saves);  // q, k and v projections save it
  Tensor output, residual;
  {
    const Tensor projected = attend(saves);
    residual = shared_.hidden("x + attention");
  }
  normed2_ = norm2_.forward(saves);
  gate_ = shared_.make("gate_proj", shared_.config.mlp);
  activated_ = shared_.make("silu(gate)", shared_.config.mlp);
  if (!saves) drop(gate_);
  up_ = shared_.make("up_proj", shared_.config.mlp);
  product_ = shared_.make("silu(gate) * up", shared_.config.mlp);
  if (!saves) drop(activated_, up_);
  if (mode != Mode::again) {
    const Tensor down = shared_.hidden("down_proj");
    if (!saves) drop(product_, normed2_);
    output = shared_.hidden("layer output");
  }
  if (saves && saves_input()) residual_ = std::move(residual);
  return output;
}

QkvGradients EagerLayer::attend_backward() {
  Tensor output_gradient = shared_.make("attention output gradient", queries_);
  drop(attended_);
  QkvGradients gradients;
  if (sdpa_) {
    gradients = sdpa_->backward();
    sdpa_->drop_saved();
  } else if (naive_) {
    gradients = naive_->backward(std::move(output_gradient));
  }
  drop(query_, key_, value_);
  return gradients;
}

// The norm saw [tokens, heads, head_dim], rope and attention heads first: the gradient is copied back into
// the order that the projection wants.
Tensor EagerLayer::head_norm_backward(std::optional<EagerRmsNorm>& norm, Tensor gradient,
                                      std::int64_t width) const {
  const Tensor by_heads = norm ? norm->backward(std::move(gradient)) : std::move(gradient);
  return shared_.make("grad.contiguous()", width);
}

void EagerLayer::backward() {
  const std::int64_t hidden = shared_.config.hidden;
  const std::int64_t mlp = shared_.config.mlp;
  // The residual passes the gradient on as it is; what the branches add to it is added in place.
  // down_proj
  shared_.weight_gradient("down_proj gradient", hidden, mlp);
  Tensor product_gradient = shared_.make("gradient of silu * up", mlp);
  drop(product_);
  // silu(gate) * up
  Tensor up_gradient = shared_.make("grad * silu", mlp);
  Tensor activated_gradient = shared_.make("grad * up", mlp);
  drop(activated_, up_, product_gradient);
  shared_.weight_gradient("up_proj gradient", mlp, hidden);
  Tensor normed_gradient = shared_.hidden("through up_proj");
  drop(up_gradient);
  Tensor gate_gradient = shared_.make("gradient of silu", mlp);
  drop(gate_, activated_gradient);
  shared_.weight_gradient("gate_proj gradient", mlp, hidden);
  Tensor through_gate = shared_.hidden("through gate_proj");
  drop(normed2_, gate_gradient);
  // Gradients of a projection's input are views, which autograd does not add to in place.
  normed_gradient = shared_.hidden("sum of gradients");
  drop(through_gate);
  (void)norm2_.backward(std::move(normed_gradient));  // added to the residual's in place
  drop(residual_);
  // o_proj, attention, rope
  shared_.weight_gradient("o_proj gradient", hidden, queries_);
  QkvGradients gradients = attend_backward();
  gradients.key = rotate_backward(std::move(gradients.key), keys_);
  gradients.query = rotate_backward(std::move(gradients.query), queries_);
  // v_proj, k_norm and k_proj, q_norm and q_proj
  shared_.weight_gradient("v_proj gradient", keys_, hidden);
  normed_gradient = shared_.hidden("through v_proj");
  drop(gradients.value);
  gradients.key = head_norm_backward(key_norm_, std::move(gradients.key), keys_);
  shared_.weight_gradient("k_proj gradient", keys_, hidden);
  Tensor through_key = shared_.hidden("through k_proj");
  drop(gradients.key);
  normed_gradient = shared_.hidden("sum of gradients");
  drop(through_key);
  gradients.query = head_norm_backward(query_norm_, std::move(gradients.query), queries_);
  shared_.weight_gradient("q_proj gradient", queries_, hidden);
  (void)shared_.hidden("through q_proj");  // added in place: the sum before is no view
  drop(normed1_, gradients.query);
  (void)norm1_.backward(std::move(normed_gradient));
}

}  // namespace headroom
