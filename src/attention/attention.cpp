#include "headroom/attention.h"

#include <array>

#include "attention/implementations.h"

namespace headroom {
namespace {

void check_shape(const TensorView& view, const Shape& shape, std::string_view what) {
  check(view.shape() == shape, "{} has shape {}, the problem says {}", what, to_string(view.shape()),
        to_string(shape));
}

void check_rows(const TensorView& view, const Shape& shape, std::string_view what) {
  check_shape(view, shape, what);
  check(view.extent(3) <= 1 || view.stride(3) == 1, "{} has stride {} in head_dim, which has to be 1", what,
        view.stride(3));
}

void check_views(const AttentionProblem& problem, const AttentionForward& views) {
  const Shape rows{problem.batch, problem.seq_q, problem.heads_q, problem.head_dim};
  const Shape keys{problem.batch, problem.seq_k, problem.heads_kv, problem.head_dim};
  check_rows(views.query, rows, "query");
  check_rows(views.key, keys, "key");
  check_rows(views.value, keys, "value");
  check_rows(views.output, rows, "output");
  check_shape(views.lse, {problem.batch, problem.heads_q, problem.seq_q}, "lse");
  for (const TensorView* view : {&views.query, &views.key, &views.value}) {
    check(view->dtype() == problem.dtype, "a view holds {}, the problem says {}", name(view->dtype()),
          name(problem.dtype));
  }
  const Mask& mask = problem.mask;
  if (problem.sinks) check_shape(views.sinks, {problem.heads_q}, "sinks");
  if (mask.max_documents > 0) {
    check_shape(views.document_starts, {problem.batch, mask.max_documents + 1}, "document_starts");
  }
  if (mask.block_rows > 0) {
    const std::int64_t tiles = (problem.seq_q + mask.block_rows - 1) / mask.block_rows;
    check_shape(views.blocks, {problem.batch, problem.heads_q, tiles, mask.max_blocks_per_row}, "blocks");
  }
}

const AttentionImplementation& pick(const AttentionProblem& problem, const DeviceDescription& device,
                                    std::string_view pinned) {
  const auto choice = choose(attention_implementations(), problem, device, pinned);
  if (choice.implementation != nullptr) return *choice.implementation;
  std::string reasons;
  for (const Refusal& refusal : choice.refusals) {
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", refusal.implementation, refusal.reason);
  }
  fail(ErrorKind::input, "no attention implementation serves this problem: {}", reasons);
}

Tensor take_workspace(Context& context, std::int64_t bytes) {
  return context.allocate(
      {.name = "attention workspace", .category = Category::workspace, .dtype = DType::u8, .shape = {bytes}});
}

}  // namespace

std::span<const AttentionImplementation> attention_implementations() {
  static const std::array kTable = {tiled_attention(), naive_attention(), naive_recomputing_attention(),
                                    reference_attention()};
  return kTable;
}

void attention_forward(Context& context, const AttentionProblem& problem, const AttentionForward& views,
                       std::string_view pinned) {
  validate(problem);
  check_views(problem, views);
  const AttentionImplementation& chosen = pick(problem, context.description(), pinned);
  const Tensor workspace =
      take_workspace(context, chosen.workspace_bytes(problem, context.description(), Pass::forward));
  context.run([&](const Stream& stream) { chosen.forward(problem, views, workspace, stream); });
}

void attention_backward(Context& context, const AttentionProblem& problem, const AttentionBackward& views,
                        std::string_view pinned) {
  validate(problem);
  check_views(problem, views.forward);
  const Shape rows{problem.batch, problem.seq_q, problem.heads_q, problem.head_dim};
  const Shape keys{problem.batch, problem.seq_k, problem.heads_kv, problem.head_dim};
  check_rows(views.output_gradient, rows, "output_gradient");
  check_rows(views.query_gradient, rows, "query_gradient");
  check_rows(views.key_gradient, keys, "key_gradient");
  check_rows(views.value_gradient, keys, "value_gradient");
  if (problem.sinks) check_shape(views.sinks_gradient, {problem.heads_q}, "sinks_gradient");
  const AttentionImplementation& chosen = pick(problem, context.description(), pinned);
  const Tensor workspace =
      take_workspace(context, chosen.workspace_bytes(problem, context.description(), Pass::backward));
  context.run([&](const Stream& stream) { chosen.backward(problem, views, workspace, stream); });
}

MaskView mask_view(const AttentionProblem& problem, const AttentionForward& views, std::int64_t batch,
                   std::int64_t head, int pattern) {
  const Mask& mask = problem.mask;
  MaskView view{.seq_q = problem.seq_q,
                .seq_k = problem.seq_k,
                .causal = mask.causal,
                .window_left = mask.window_left,
                .window_right = mask.window_right,
                .dilation = {}};
  if (mask.max_documents > 0) {
    view.document_starts = views.document_starts.data<std::int32_t>() + views.document_starts.offset(batch);
    view.documents = mask.max_documents;
  }
  if (mask.dilation_count > 0) {
    const std::int64_t group = head / (problem.heads_q / mask.dilation_count);
    view.dilation = mask.dilations[static_cast<std::size_t>(mask.mix_dilations ? pattern : group)];
    view.dilation_offset = head % view.dilation.rate;
  }
  if (mask.block_rows > 0) {
    view.blocks = views.blocks.data<std::int32_t>() + views.blocks.offset(batch, head);
    view.block_rows = mask.block_rows;
    view.block_columns = mask.block_columns;
    view.max_blocks_per_row = mask.max_blocks_per_row;
  }
  return view;
}

}  // namespace headroom
