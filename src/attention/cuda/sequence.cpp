#include "attention/cuda/sequence.h"

#include <algorithm>
#include <limits>

#include "attention/implementations.h"
#include "headroom/core/checked.h"

namespace headroom::cuda {

Support supports_on_gpu(const AttentionProblem& problem, const DeviceDescription& device) {
  if (device.kind != DeviceKind::cuda) return Support::no("runs on CUDA GPUs only");
  constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max() - 1024;
  if (problem.seq_q > kMaxRows || problem.seq_k > kMaxRows) {
    return Support::no(
        fmt::format("seq_q {} or seq_k {} is over {}", problem.seq_q, problem.seq_k, kMaxRows));
  }
  if (dilated(problem) && problem.mask.block_rows > 0) {
    return Support::no("does not combine block lists with dilation");
  }
  if (problem.mask.detach_mixing && problem.sinks) {
    return Support::no("detached mixing with sinks has no definition");
  }
  if (problem.dtype == DType::f64) return Support::no("the reference alone takes f64");
  return Support::yes();
}

TypedHeadsView heads_view(const TensorView& view) {
  const std::int64_t unit = 4 * size_bytes(view.dtype());  // bytes that move as one
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(view.raw()) % static_cast<std::uintptr_t>(unit) == 0 &&
      view.stride(0) % 4 == 0 && view.stride(1) % 4 == 0 && view.stride(2) % 4 == 0;
  return {{view.raw(), view.stride(0), view.stride(1), view.stride(2)}, view.dtype(), aligned};
}

MaskRule mask_rule(const AttentionProblem& problem, const AttentionForward& views) {
  const Mask& mask = problem.mask;
  MaskRule rule;
  rule.view = {.seq_q = problem.seq_q,
               .seq_k = problem.seq_k,
               .query_start = problem.query_start(),
               .key_start = problem.key_start(),
               .causal = mask.causal,
               .window_left = mask.window_left,
               .window_right = mask.window_right,
               .dilation = {}};
  if (mask.max_documents > 0) {
    rule.view.document_starts = views.document_starts.data<std::int32_t>();
    rule.view.documents = mask.max_documents;
    rule.documents_stride = mask.max_documents + 1;
  }
  std::copy(mask.dilations.begin(), mask.dilations.end(), rule.dilations);
  rule.mixed = mask.mix_dilations;
  if (!rule.mixed && mask.dilation_count > 0) {
    rule.heads_per_dilation = problem.heads_q / mask.dilation_count;
  }
  return rule;
}

AttentionCall attention_call(const AttentionProblem& problem, const AttentionForward& views) {
  AttentionCall call;
  call.batch = problem.batch;
  call.heads_q = problem.heads_q;
  call.heads_kv = problem.heads_kv;
  call.seq_q = static_cast<std::int32_t>(problem.seq_q);
  call.seq_k = static_cast<std::int32_t>(problem.seq_k);
  call.head_dim = static_cast<std::int32_t>(problem.head_dim);
  call.scale = score_scale(problem);
  call.softcap = problem.softcap;
  call.rule = mask_rule(problem, views);
  if (problem.mask.block_rows > 0) {
    call.blocks = {.blocks = views.blocks.data<std::int32_t>(),
                   .batch_stride = views.blocks.stride(0),
                   .head_stride = views.blocks.stride(1),
                   .list_stride = views.blocks.stride(2),
                   .length = problem.mask.max_blocks_per_row,
                   .rows = std::min(problem.mask.block_rows, std::max<std::int64_t>(problem.seq_q, 1)),
                   .columns = std::min(problem.mask.block_columns, std::max<std::int64_t>(problem.seq_k, 1))};
  }
  call.query = heads_view(views.query);
  call.key = heads_view(views.key);
  call.value = heads_view(views.value);
  call.output = heads_view(views.output);
  call.lse = views.lse.data<float>();
  call.sinks = problem.sinks ? views.sinks.data<float>() : nullptr;
  call.resume = problem.resume;
  if (views.row_sum.elements() > 0) call.row_sum = views.row_sum.data<double>();
  return call;
}

namespace {

MergeSide merge_side(const AttentionPartial& partial) {
  return {heads_view(partial.output), partial.lse.data<float>(), partial.lse.stride(0), partial.lse.stride(1),
          partial.lse.stride(2)};
}

}  // namespace

MergeCall merge_call(const AttentionPartial& into, const AttentionPartial& from) {
  const TensorView& rows = into.output;
  return {.into = merge_side(into),
          .from = merge_side(from),
          .batch = rows.extent(0),
          .rows = rows.extent(1),
          .heads = rows.extent(2),
          .head_dim = static_cast<std::int32_t>(rows.extent(3))};
}

CloseCall close_call(const AttentionPartial& partial, const TensorView& row_sum, const TensorView& output) {
  const TensorView& rows = partial.output;
  return {.partial = merge_side(partial),
          .output = heads_view(output),
          .row_sum = row_sum.data<double>(),
          .batch_stride = row_sum.stride(0),
          .head_stride = row_sum.stride(1),
          .row_stride = row_sum.stride(2),
          .batch = rows.extent(0),
          .rows = rows.extent(1),
          .heads = rows.extent(2),
          .head_dim = static_cast<std::int32_t>(rows.extent(3))};
}

void Workspace::take(const AttentionProblem& problem, Pass pass, const Needs& needs, Pieces& pieces) {
  const bool mixes = problem.mask.patterns_per_head() > 1;
  const std::int64_t statistics = checked_multiply(problem.batch * problem.heads_q, problem.seq_q);
  const std::int64_t q_elements = checked_multiply(statistics, problem.head_dim);
  const std::int64_t k_elements =
      checked_multiply(problem.batch * problem.seq_k * problem.heads_kv, problem.head_dim);
  const auto take_words = [&](std::int32_t*& words, std::int64_t count, std::int64_t each) {
    words = pieces.take<std::int32_t>(checked_multiply(count, each));
  };
  // Dilation: a list per query head, of the rows that take part; where keys are at the queries' positions
  // there is one list for both. Else one per sequence, of all rows.
  lists.per_head = dilated(problem) && needs.intervals;
  const std::int64_t count = problem.batch * (lists.per_head ? problem.heads_q : 1);
  lists.capacity = problem.seq_q;
  lists.key_capacity = problem.seq_k;
  if (lists.per_head) {
    lists.capacity = most_dilated_rows(problem, problem.seq_q, problem.query_start());
    lists.key_capacity = most_dilated_rows(problem, problem.seq_k, problem.key_start());
    take_words(lists.rows, count, lists.capacity);
    take_words(lists.counts, count, 1);
    lists.key_rows = lists.rows;
    lists.key_counts = lists.counts;
  }
  if (lists.per_head && !problem.same_positions()) {
    take_words(lists.key_rows, count, lists.key_capacity);
    take_words(lists.key_counts, count, 1);
  }
  if (needs.intervals) {
    take_words(lists.first, count, lists.capacity);
    take_words(lists.last, count, lists.capacity);
  }
  if (pass == Pass::forward) {
    if (mixes && problem.dtype_of_output() != DType::f32) output = pieces.take<float>(q_elements);
    return;
  }
  if (needs.row_statistics) {
    row_shift = pieces.take<float>(statistics);
    row_dot = pieces.take<float>(statistics);
  }
  const bool narrow = problem.dtype_of_gradients() != DType::f32;  // sums need more than the gradients hold
  if (narrow && needs.query_gradient) query_gradient = pieces.take<float>(q_elements);
  // Heads of a K/V group differ in the rows that take part.
  key_parts = needs.key_parts;
  adds_key_gradients = mixes || (dilated(problem) && problem.heads_q > problem.heads_kv);
  if ((narrow && adds_key_gradients) || key_parts > 1) {
    key_gradient = pieces.take<float>(checked_multiply(key_parts, k_elements));
    value_gradient = pieces.take<float>(checked_multiply(key_parts, k_elements));
  }
  if (problem.mask.detach_mixing) {
    output = pieces.take<float>(q_elements);
    pattern_lse = pieces.take<float>(statistics);
  }
}

}  // namespace headroom::cuda
