#include "model/layer_attention.h"

#include "headroom/core/bytes.h"

namespace headroom {
namespace {

// The gradient of the queries is summed in f32 there: 2 GiB of it for 32 heads of 128 at 131,072 tokens.
// Above that, groups of heads run one after the other, and each launch is still long enough to fill a GPU.
constexpr std::int64_t kMostAttentionBackwardBytes = 2304 * kMiB;

AttentionForward views_of(const LayerAttention& attention, const LayerActivations& acts) {
  return {.query = acts[Activation::query],
          .key = acts[Activation::key],
          .value = acts[Activation::value],
          .sinks = {},
          .document_starts = attention.document_starts,
          .blocks = {},
          .output = acts[Activation::output],
          .lse = acts[Activation::lse],
          .saved = {}};
}

// The lse of a rank is that of one piece after the other.
RingForward rank_views_of(const LayerAttention& attention, const LayerActivations& acts) {
  const TensorView& lse = acts[Activation::lse];
  return {.inputs = {.query = acts[Activation::query],
                     .key = acts[Activation::key],
                     .value = acts[Activation::value],
                     .sinks = {},
                     .document_starts = attention.document_starts,
                     .blocks = {}},
          .output = acts[Activation::output],
          .lse = lse.reshape({lse.elements()})};
}

}  // namespace

AttentionProblem whole_attention(const ModelConfig& config, DType dtype, const StepSizes& sizes,
                                 const Mask& mask) {
  return {.batch = sizes.batch,
          .seq_q = sizes.context,
          .seq_k = sizes.context,
          .heads_q = config.heads_q,
          .heads_kv = config.heads_kv,
          .head_dim = config.head_dim,
          .dtype = dtype,
          .most_backward_bytes = kMostAttentionBackwardBytes,
          .mask = mask};
}

void attention_forward(Context& context, const LayerAttention& attention, const LayerActivations& acts) {
  if (attention.over_ranks == nullptr) {
    return attention_forward(context, attention.problem, views_of(attention, acts));
  }
  const auto stage = context.stage(StageKind::over_ranks);
  parallel_attention_forward(context, *attention.over_ranks, rank_views_of(attention, acts));
}

void attention_backward(Context& context, const LayerAttention& attention, const LayerActivations& acts,
                        const AttentionGradients& gradients) {
  if (attention.over_ranks == nullptr) {
    return attention_backward(context, attention.problem,
                              {.forward = views_of(attention, acts),
                               .output_gradient = gradients.output,
                               .lse_gradient = {},
                               .query_gradient = gradients.query,
                               .key_gradient = gradients.key,
                               .value_gradient = gradients.value,
                               .sinks_gradient = {}});
  }
  const auto stage = context.stage(StageKind::over_ranks);
  parallel_attention_backward(context, *attention.over_ranks,
                              {.forward = rank_views_of(attention, acts),
                               .output_gradient = gradients.output,
                               .lse_gradient = {},
                               .query_gradient = gradients.query,
                               .key_gradient = gradients.key,
                               .value_gradient = gradients.value,
                               .sinks_gradient = {}});
}

}  // namespace headroom
