#include "headroom/loss.h"

#include <array>

#include "headroom/core/checked.h"
#include "loss/implementations.h"

namespace headroom {
namespace {

void check_view(const TensorView& view, const Shape& shape, DType dtype, std::string_view what) {
  check(view.shape() == shape, "{} has shape {}, the problem says {}", what, view.shape(), shape);
  check(view.dtype() == dtype, "{} holds {}, the problem says {}", what, name(view.dtype()), name(dtype));
  check(view.is_dense(), "{} has to be dense", what);
}

Shape loss_shape(const LossProblem& problem) {
  return {problem.reduction == Reduction::none ? problem.tokens : 1};
}

void check_views(const LossProblem& problem, const LossForward& views) {
  check_view(views.hidden, {problem.tokens, problem.hidden}, problem.dtype, "hidden");
  check_view(views.weight, {problem.vocab, problem.hidden}, problem.dtype, "weight");
  check_view(views.labels, {problem.tokens}, DType::i32, "labels");
  if (problem.token_weights) check_view(views.token_weights, {problem.tokens}, DType::f32, "token_weights");
  check_view(views.loss, loss_shape(problem), DType::f32, "loss");
}

void check_saved(const LossProblem& problem, const LossForward& views, const LossImplementation& chosen) {
  const std::int64_t needed = chosen.saved_bytes(problem);
  if (needed == 0) return;
  check(views.saved.dtype() == DType::u8 && views.saved.is_dense() && views.saved.elements() >= needed,
        "{} keeps {} bytes for backward, saved holds {}", chosen.name, needed, views.saved.bytes());
}

// Before kernels use them as indices.
void check_labels(const LossProblem& problem, const LossForward& views) {
  const std::int32_t* labels = views.labels.data<std::int32_t>();
  for (std::int64_t i = 0; i < problem.tokens; ++i) {
    check(labels[i] == problem.ignore_index || (labels[i] >= 0 && labels[i] < problem.vocab),
          "label {} of token {} is neither in 0 to {} nor {}, which is ignored", labels[i], i,
          problem.vocab - 1, problem.ignore_index);
  }
}

Tensor take_workspace(Context& context, std::int64_t bytes) {
  return context.allocate(
      {.name = "loss workspace", .category = Category::workspace, .dtype = DType::u8, .shape = {bytes}});
}

// Forward reads the hidden states once and the weights once for each chunk of tokens. Backward reads both
// twice and writes the gradient of the hidden states once; every chunk adds to the f32 gradient of the
// weights.
double moved_bytes(const LossProblem& problem, Pass pass) {
  const auto hidden = static_cast<double>(dense_bytes(problem.dtype, {problem.tokens, problem.hidden}));
  const auto weight = static_cast<double>(dense_bytes(problem.dtype, {problem.vocab, problem.hidden}));
  const auto sum = static_cast<double>(dense_bytes(DType::f32, {problem.vocab, problem.hidden}));
  const auto chunks =
      static_cast<double>(problem.chunk_tokens == 0 ? 1 : divide_up(problem.tokens, problem.chunk_tokens));
  return pass == Pass::forward ? hidden + chunks * weight : 3 * hidden + chunks * 2 * (weight + sum);
}

}  // namespace

std::span<const LossImplementation> loss_implementations() {
  static const std::array kTable = {fused_loss(),   fused_cuda_loss(), chunked_recomputing_loss(),
                                    chunked_loss(), standard_loss(),   reference_loss()};
  return kTable;
}

void loss_forward(Context& context, const LossProblem& problem, const LossForward& views,
                  std::string_view pinned) {
  validate(problem);
  check_views(problem, views);
  const LossImplementation& chosen =
      pick(loss_implementations(), problem, context.description(), pinned, "the loss");
  check_saved(problem, views, chosen);
  const Work work{.kernel = "loss",
                  .row = chosen.name,
                  .assumed = chosen.assumed(),
                  .flops = flops(problem, Pass::forward),
                  .bytes = moved_bytes(problem, Pass::forward),
                  .workspace_bytes = chosen.workspace_bytes(problem, context.description(), Pass::forward)};
  const Tensor workspace = take_workspace(context, work.workspace_bytes);
  context.run(work, [&](const Stream& stream) {
    if (context.description().host_accessible()) check_labels(problem, views);
    chosen.forward(problem, views, workspace, stream);
  });
}

void loss_backward(Context& context, const LossProblem& problem, const LossBackward& views,
                   std::string_view pinned) {
  validate(problem);
  check_views(problem, views.forward);
  check_view(views.loss_gradient, loss_shape(problem), DType::f32, "loss_gradient");
  check_view(views.hidden_gradient, {problem.tokens, problem.hidden}, problem.dtype, "hidden_gradient");
  check_view(views.weight_gradient, {problem.vocab, problem.hidden}, DType::f32, "weight_gradient");
  const LossImplementation& chosen =
      pick(loss_implementations(), problem, context.description(), pinned, "the loss");
  check_saved(problem, views.forward, chosen);
  // Backward makes the logits once more.
  const Work work{.kernel = "loss backward",
                  .row = chosen.name,
                  .assumed = chosen.assumed(),
                  .flops = flops(problem, Pass::forward) + flops(problem, Pass::backward),
                  .bytes = moved_bytes(problem, Pass::backward),
                  .workspace_bytes = chosen.workspace_bytes(problem, context.description(), Pass::backward)};
  const Tensor workspace = take_workspace(context, work.workspace_bytes);
  context.run(work, [&](const Stream& stream) {
    if (context.description().host_accessible()) check_labels(problem, views.forward);
    chosen.backward(problem, views, workspace, stream);
  });
}

TokenTargets::TokenTargets(const LossProblem& problem, const LossForward& views)
    : labels_(LossLabels::of(problem, views)) {
  if (problem.reduction != Reduction::mean) return;
  divisor_ = 0;
  for (std::int64_t token = 0; token < problem.tokens; ++token) {
    if (label(token) >= 0) divisor_ += labels_.weight(token);
  }
}

double TokenTargets::weight(std::int64_t token) const {
  return label(token) < 0 || divisor_ == 0 ? 0 : labels_.weight(token) / divisor_;
}

bool TokenTargets::any(std::int64_t begin, std::int64_t end) const {
  for (std::int64_t token = begin; token < end; ++token) {
    if (weight(token) != 0) return true;
  }
  return false;
}

}  // namespace headroom
