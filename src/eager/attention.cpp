#include "eager/attention.h"

#include <utility>

namespace headroom {

void SdpaAttention::forward() {
  output_ = program_.make("attention output", Category::activations, shape_.dtype, shape_.queries());
  lse_ = program_.make("log-sum-exp", Category::attention, DType::f32, shape_.rows());
}

QkvGradients SdpaAttention::backward() {
  return shape_.dtype == DType::f32 ? backward_memory_efficient() : backward_cudnn();
}

QkvGradients SdpaAttention::backward_cudnn() {
  const auto gradient = [&](std::string_view name, const Shape& shape) {
    return program_.make(name, Category::activations, shape_.dtype, shape);
  };
  QkvGradients gradients{.query = gradient("query gradient", shape_.queries()),
                         .key = gradient("key gradient", shape_.keys()),
                         .value = gradient("value gradient", shape_.keys())};
  // cuDNN's workspace: the queries' gradient is accumulated in f32, every row has the sum of output x its
  // gradient, and where query heads share a key head, each of them first has gradients of its own.
  const std::int64_t queries = shape_.queries().elements();
  const std::int64_t shared = shape_.heads_q == shape_.heads_kv ? 0 : 2 * size_bytes(shape_.dtype) * queries;
  const Tensor workspace = program_.make("cuDNN workspace", Category::workspace, DType::u8,
                                         {4 * queries + shared + 4 * shape_.rows().elements()});
  return gradients;
}

QkvGradients SdpaAttention::backward_memory_efficient() {
  const auto gradient = [&](std::string_view name, const Shape& shape) {
    return program_.make(name, Category::activations, DType::f32, shape);
  };
  QkvGradients gradients{.query = gradient("query gradient", shape_.queries()),
                         .key = gradient("key gradient", shape_.keys()),
                         .value = gradient("value gradient", shape_.keys())};
  // delta = (grad_out * out).sum(-1)
  Tensor product = gradient("grad_out * out", shape_.queries());
  const Tensor delta = program_.make("delta", Category::attention, DType::f32, shape_.rows());
  drop(product);
  const Tensor workspace =
      program_.make("query gradient of the splits", Category::workspace, DType::f32, shape_.queries());
  return gradients;
}

Tensor NaiveAttention::forward() {
  if (repeats()) {
    // expand, then reshape: no view can say that, so both are copies, and the products save them.
    repeated_key_ = like_queries("repeated keys");
    repeated_value_ = like_queries("repeated values");
  }
  program_.product_in_forward();
  Tensor raw = like_scores("q @ k^T");
  Tensor scores = like_scores("scores / sqrt(d)");
  drop(raw);
  if (causal_) {
    mask_ = program_.make("causal mask", Category::attention, DType::u8, {shape_.seq, shape_.seq});
    scores = like_scores("scores.masked_fill(mask, -inf)");
  }
  weights_ = like_scores("softmax(scores)");  // softmax and the next product save it
  return like_queries("weights @ v");
}

Tensor NaiveAttention::sum_over_repeats(Tensor repeated, std::string_view name) const {
  if (!repeats()) return repeated;
  return program_.make(name, Category::activations, shape_.dtype, shape_.keys());
}

QkvGradients NaiveAttention::backward(Tensor output_gradient) {
  QkvGradients gradients;
  program_.product_in_backward();
  // A gradient that sum() expanded has stride 0, which no product takes: each copies it.
  const bool expanded = output_gradient.view().elements() == 0;
  const auto copy_where_expanded = [&] {
    if (expanded) (void)like_queries("grad_out.contiguous()");
  };
  // weights @ v
  Tensor value_gradient = like_queries("weights^T @ grad_out");
  copy_where_expanded();
  Tensor weights_gradient = like_scores("grad_out @ v^T");
  copy_where_expanded();
  drop(repeated_value_, output_gradient);
  gradients.value = sum_over_repeats(std::move(value_gradient), "value gradient");
  // softmax: the CUDA kernel is given grad * output as a tensor
  Tensor scores_gradient = like_scores("softmax gradient");
  (void)like_scores("grad * output");
  drop(weights_gradient, weights_);
  if (causal_) {
    scores_gradient = like_scores("grad.masked_fill(mask, 0)");
    drop(mask_);
  }
  scores_gradient = like_scores("grad / sqrt(d)");
  // q @ k^T: the gradient of k^T lies transposed; a parameter's gradient is a copy in its own layout.
  Tensor transposed = like_queries("q^T @ grad");
  gradients.query = like_queries("grad @ k");
  drop(scores_gradient, repeated_key_);
  if (repeats()) {
    gradients.key = sum_over_repeats(std::move(transposed), "key gradient");
  } else {
    gradients.key = like_queries("key gradient");
  }
  return gradients;
}

}  // namespace headroom
