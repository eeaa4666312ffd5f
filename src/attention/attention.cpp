#include "headroom/attention.h"

#include <array>

#include "attention/backward_parts.h"
#include "attention/implementations.h"
#include "headroom/core/checked.h"

namespace headroom {
namespace {

std::int64_t open_bytes(const AttentionProblem& problem, const AttentionImplementation& row) {
  return row.open_bytes == nullptr ? 0 : row.open_bytes(problem);
}

void check_view(const TensorView& view, const Shape& shape, DType dtype, std::string_view what) {
  check(view.shape() == shape, "{} has shape {}, the problem says {}", what, view.shape(), shape);
  check(view.dtype() == dtype, "{} holds {}, the problem says {}", what, name(view.dtype()), name(dtype));
}

// Any strides, but the elements of a row side by side.
void check_rows(const TensorView& view, const Shape& shape, DType dtype, std::string_view what) {
  check_view(view, shape, dtype, what);
  check(view.extent(3) <= 1 || view.stride(3) == 1, "{} has stride {} in head_dim, which has to be 1", what,
        view.stride(3));
}

void check_dense(const TensorView& view, const Shape& shape, DType dtype, std::string_view what) {
  check_view(view, shape, dtype, what);
  check(view.is_dense(), "{} has to be dense", what);
}

// What kernels write: no two elements in one place.
void check_result(const TensorView& view, const Shape& shape, DType dtype, std::string_view what) {
  check_rows(view, shape, dtype, what);
  for (int i = 0; i < view.rank(); ++i) {
    check(view.extent(i) <= 1 || view.stride(i) != 0, "{} is written and has stride 0 in dimension {}", what,
          i);
  }
}

void check_open(const AttentionProblem& problem, const AttentionBackward& views,
                const AttentionImplementation& chosen) {
  if (!problem.open_queries) return;
  const std::int64_t needed = open_bytes(problem, chosen);
  check(needed > 0, "{} keeps nothing of open queries", chosen.name);
  check(views.open.dtype() == DType::u8 && views.open.is_dense() && views.open.elements() >= needed,
        "{} keeps {} bytes of open queries, open holds {}", chosen.name, needed, views.open.bytes());
}

void check_saved(const AttentionProblem& problem, const AttentionForward& views,
                 const AttentionImplementation& chosen) {
  const std::int64_t needed = chosen.saved_bytes(problem);
  if (needed == 0) return;
  check(views.saved.dtype() == DType::u8 && views.saved.is_dense() && views.saved.elements() >= needed,
        "{} keeps {} bytes for backward, saved holds {}", chosen.name, needed,
        views.saved.elements() * size_bytes(views.saved.dtype()));
}

// Blocks may be shared between sequences and heads, and lie in a wider tensor; a list is one run of memory.
void check_blocks(const AttentionProblem& problem, const TensorView& blocks) {
  const Mask& mask = problem.mask;
  check_view(
      blocks,
      {problem.batch, problem.heads_kv, divide_up(problem.seq_q, mask.block_rows), mask.max_blocks_per_row},
      DType::i32, "blocks");
  check(blocks.extent(3) <= 1 || blocks.stride(3) == 1,
        "blocks have stride {} in the last dimension, which has to be 1", blocks.stride(3));
}

Shape query_shape(const AttentionProblem& problem) {
  return {problem.batch, problem.seq_q, problem.heads_q, problem.head_dim};
}
Shape key_shape(const AttentionProblem& problem) {
  return {problem.batch, problem.seq_k, problem.heads_kv, problem.head_dim};
}
Shape statistics_shape(const AttentionProblem& problem) {
  return {problem.batch, problem.heads_q, problem.seq_q};
}

// What a row is picked for: the problem, and the alignment that the strides leave. Strides are the same in
// rehearsal and run, so that both pick the same row.
AttentionProblem aligned_as(AttentionProblem problem, std::initializer_list<const TensorView*> views) {
  std::int64_t multiples = 16;  // its lowest bit is the largest power of two that divides every stride
  for (const TensorView* view : views) {
    for (int i = 0; i < 3; ++i) {
      if (view->extent(i) > 1) multiples |= view->stride(i) * size_bytes(view->dtype());
    }
  }
  problem.row_alignment_bytes = multiples & -multiples;
  return problem;
}

void check_views(const AttentionProblem& problem, const AttentionForward& views) {
  check_rows(views.query, query_shape(problem), problem.dtype, "query");
  check_rows(views.key, key_shape(problem), problem.dtype, "key");
  check_rows(views.value, key_shape(problem), problem.dtype, "value");
  check_result(views.output, query_shape(problem), problem.dtype_of_output(), "output");
  check_dense(views.lse, statistics_shape(problem), problem.dtype_of_sums(), "lse");
  if (views.row_sum.elements() > 0) {
    check_dense(views.row_sum, statistics_shape(problem), DType::f64, "row_sum");
  }
  const Mask& mask = problem.mask;
  if (problem.sinks) check_dense(views.sinks, {problem.heads_q}, DType::f32, "sinks");
  if (mask.max_documents > 0) {
    check_dense(views.document_starts, {problem.batch, mask.max_documents + 1}, DType::i32,
                "document_starts");
  }
  if (mask.block_rows > 0) check_blocks(problem, views.blocks);
}

// What the lists of a batch hold, before kernels follow them. On a GPU they are in its memory: whoever makes
// them answers for them, and kernels there clamp what they read (attention/cuda/tiles.h), so that a wrong
// list gives wrong values and never a wrong address.
void check_lists(const AttentionProblem& problem, const AttentionForward& views, const Stream& stream) {
  if (stream.device->kind != DeviceKind::cpu) return;
  const Mask& mask = problem.mask;
  for (std::int64_t b = 0; b < problem.batch && mask.max_documents > 0; ++b) {
    const std::int32_t* starts = views.document_starts.data<std::int32_t>() + views.document_starts.offset(b);
    check(starts[0] == 0, "document_starts of sequence {} begin with {}, not with 0", b, starts[0]);
    for (std::int64_t i = 0; i < mask.max_documents; ++i) {
      check(starts[i] <= starts[i + 1], "document {} of sequence {} starts at {} and ends before, at {}", i,
            b, starts[i], starts[i + 1]);
    }
    check(problem.chunk || starts[mask.max_documents] <= problem.seq_k,
          "the last document of sequence {} ends at {}, the sequence at {}", b, starts[mask.max_documents],
          problem.seq_k);
  }
  if (mask.block_rows == 0) return;
  const std::int64_t tiles = divide_up(problem.seq_k, mask.block_columns);
  const TensorView& blocks = views.blocks;
  for (std::int64_t b = 0; b < blocks.extent(0); ++b) {
    for (std::int64_t kv = 0; kv < blocks.extent(1); ++kv) {
      for (std::int64_t row = 0; row < blocks.extent(2); ++row) {
        const std::int32_t* list = blocks.data<std::int32_t>() + blocks.offset(b, kv, row);
        std::int32_t before = -1;
        for (std::int64_t i = 0; i < mask.max_blocks_per_row && list[i] >= 0; before = list[i++]) {
          check(list[i] > before && list[i] < tiles,
                "key tile {} follows {} in a list of blocks; they rise to {}", list[i], before, tiles - 1);
        }
      }
    }
  }
}

Tensor take_workspace(Context& context, std::int64_t bytes) {
  return context.allocate(
      {.name = "attention workspace", .category = Category::workspace, .dtype = DType::u8, .shape = {bytes}});
}

std::int64_t workspace_bytes(const AttentionProblem& problem, const AttentionImplementation& row,
                             const DeviceDescription& device, Pass pass) {
  return pass == Pass::forward ? row.workspace_bytes(problem, device, pass)
                               : BackwardParts::of(problem, row, device).workspace_bytes;
}

Work work_of(const AttentionProblem& problem, const AttentionImplementation& chosen,
             const DeviceDescription& device, Pass pass) {
  return {.kernel = pass == Pass::forward ? "attention" : "attention backward",
          .row = chosen.name,
          .assumed = chosen.assumed(),
          .flops = flops(problem, pass),
          .bytes = static_cast<double>(minimum_bytes(problem, pass)),
          .workspace_bytes = workspace_bytes(problem, chosen, device, pass)};
}

}  // namespace

std::span<const AttentionImplementation> attention_implementations() {
  static const std::array kTable = {
      tiled_attention(),    sm90_attention(), bf16x3_attention(), tf32x3_attention(),
      portable_attention(), tf32_attention(), naive_attention(),  naive_recomputing_attention(),
      reference_attention()};
  return kTable;
}

namespace {

// A checked call: the problem with the alignment that its views leave, the row for it and its work.
struct Picked {
  Picked(Context& context, const AttentionProblem& aligned, Pass pass, std::string_view pinned)
      : problem(aligned),
        row(pick(attention_implementations(), problem, context.description(), pinned, "attention")),
        work(work_of(problem, row, context.description(), pass)) {}

  void check_workspace(const TensorView& workspace) const {
    check(workspace.dtype() == DType::u8 && workspace.is_dense() &&
              workspace.elements() >= work.workspace_bytes,
          "{} needs a workspace of {} bytes for {}, not {}", row.name, work.workspace_bytes, work.kernel,
          workspace.bytes());
  }

  AttentionProblem problem;
  const AttentionImplementation& row;
  Work work;
};

Picked checked_forward(Context& context, const AttentionProblem& given, const AttentionForward& views,
                       std::string_view pinned) {
  validate(given);
  check_views(given, views);
  Picked picked(context, aligned_as(given, {&views.query, &views.key, &views.value, &views.output}),
                Pass::forward, pinned);
  check_saved(picked.problem, views, picked.row);
  return picked;
}

Picked checked_backward(Context& context, const AttentionProblem& given, const AttentionBackward& views,
                        std::string_view pinned) {
  validate(given);
  check_views(given, views.forward);
  const AttentionForward& forward = views.forward;
  check_rows(views.output_gradient, query_shape(given), given.dtype_of_output(), "output_gradient");
  const DType of_queries = given.open_queries && views.query_gradient.dtype() == given.dtype
                               ? given.dtype
                               : given.dtype_of_gradients();
  check_result(views.query_gradient, query_shape(given), of_queries, "query_gradient");
  check_result(views.key_gradient, key_shape(given), given.dtype_of_gradients(), "key_gradient");
  check_result(views.value_gradient, key_shape(given), given.dtype_of_gradients(), "value_gradient");
  if (views.lse_gradient.elements() > 0) {
    check_dense(views.lse_gradient, statistics_shape(given), given.dtype_of_sums(), "lse_gradient");
  }
  if (given.sinks) check_dense(views.sinks_gradient, {given.heads_q}, DType::f32, "sinks_gradient");
  Picked picked(context,
                aligned_as(given, {&forward.query, &forward.key, &forward.value, &forward.output,
                                   &views.output_gradient, &views.query_gradient, &views.key_gradient,
                                   &views.value_gradient}),
                Pass::backward, pinned);
  check_saved(picked.problem, views.forward, picked.row);
  check_open(picked.problem, views, picked.row);
  return picked;
}

void run_forward(Context& context, const Picked& picked, const AttentionForward& views,
                 const TensorView& workspace) {
  context.run(picked.work, [&](const Stream& stream) {
    check_lists(picked.problem, views, stream);
    picked.row.forward(picked.problem, views, workspace, stream);
  });
}

void run_backward(Context& context, const Picked& picked, const AttentionBackward& views,
                  const TensorView& workspace) {
  context.run(picked.work, [&](const Stream& stream) {
    check_lists(picked.problem, views.forward, stream);
    const BackwardParts parts = BackwardParts::of(picked.problem, picked.row, *stream.device);
    for (std::int64_t part = 0; part < parts.count; ++part) {
      picked.row.backward(parts.problem, parts.views(views, part), workspace, stream);
    }
  });
}

}  // namespace

void attention_forward(Context& context, const AttentionProblem& problem, const AttentionForward& views,
                       std::string_view pinned) {
  const Picked picked = checked_forward(context, problem, views, pinned);
  run_forward(context, picked, views, take_workspace(context, picked.work.workspace_bytes));
}

void attention_backward(Context& context, const AttentionProblem& problem, const AttentionBackward& views,
                        std::string_view pinned) {
  const Picked picked = checked_backward(context, problem, views, pinned);
  run_backward(context, picked, views, take_workspace(context, picked.work.workspace_bytes));
}

void attention_forward(Context& context, const AttentionProblem& problem, const AttentionForward& views,
                       const TensorView& workspace, std::string_view pinned) {
  const Picked picked = checked_forward(context, problem, views, pinned);
  picked.check_workspace(workspace);
  run_forward(context, picked, views, workspace);
}

void attention_backward(Context& context, const AttentionProblem& problem, const AttentionBackward& views,
                        const TensorView& workspace, std::string_view pinned) {
  const Picked picked = checked_backward(context, problem, views, pinned);
  picked.check_workspace(workspace);
  run_backward(context, picked, views, workspace);
}

std::int64_t attention_workspace_bytes(const AttentionProblem& problem, const DeviceDescription& device,
                                       Pass pass, std::string_view pinned) {
  return workspace_bytes(problem, pick(attention_implementations(), problem, device, pinned, "attention"),
                         device, pass);
}

std::int64_t attention_open_bytes(const AttentionProblem& problem, const DeviceDescription& device,
                                  std::string_view pinned) {
  return open_bytes(problem, pick(attention_implementations(), problem, device, pinned, "attention"));
}

MaskView mask_view(const AttentionProblem& problem, const AttentionForward& views, std::int64_t batch,
                   std::int64_t head, int pattern) {
  const Mask& mask = problem.mask;
  MaskView view{.seq_q = problem.seq_q,
                .seq_k = problem.seq_k,
                .query_start = problem.query_start(),
                .key_start = problem.key_start(),
                .causal = mask.causal,
                .window_left = mask.window_left,
                .window_right = mask.window_right,
                .dilation = {}};
  if (mask.max_documents > 0) {
    view.document_starts = views.document_starts.data<std::int32_t>() + views.document_starts.offset(batch);
    view.documents = mask.max_documents;
  }
  if (mask.dilation_count > 0) {
    const std::int64_t index = mask.mix_dilations ? pattern : head / (problem.heads_q / mask.dilation_count);
    view.dilation = mask.dilations[static_cast<std::size_t>(index)];
    view.dilation_offset = head % view.dilation.rate;
  }
  if (mask.block_rows > 0) {
    const std::int64_t group = problem.heads_q / problem.heads_kv;
    view.blocks = views.blocks.data<std::int32_t>() + views.blocks.offset(batch, head / group);
    view.block_stride = views.blocks.stride(2);
    view.block_rows = mask.block_rows;
    view.block_columns = mask.block_columns;
    view.max_blocks_per_row = mask.max_blocks_per_row;
  }
  return view;
}

}  // namespace headroom
