// A pass of attention on a GPU as a sequence of launches, told once for all rows of the table; and what the
// launches share: the call and a part of the workspace. Plain C++, so that a machine without CUDA plans the
// same bytes and tests can run the sequence on the host.
//
//   forward     start the rows (dilation); per pattern: lists, forward; round the sums
//   backward    row statistics, dSink, zeros; per pattern: lists, statistics, backward of the heads that one
//               launch sums over; round the sums
#pragma once

#include <concepts>

#include "attention/cuda/merge.h"
#include "attention/cuda/shared.h"
#include "core/pieces.h"
#include "headroom/attention.h"

namespace headroom::cuda {

// What every row for GPUs refuses.
[[nodiscard]] Support supports_on_gpu(const AttentionProblem& problem, const DeviceDescription& device);

[[nodiscard]] TypedHeadsView heads_view(const TensorView& view);

// The mask as kernels take it; the pointers are the views'.
[[nodiscard]] MaskRule mask_rule(const AttentionProblem& problem, const AttentionForward& views);

// Sizes, mask, inputs and results; no workspace.
[[nodiscard]] AttentionCall attention_call(const AttentionProblem& problem, const AttentionForward& views);

[[nodiscard]] MergeCall merge_call(const AttentionPartial& into, const AttentionPartial& from);
[[nodiscard]] CloseCall close_call(const AttentionPartial& partial, const TensorView& row_sum,
                                   const TensorView& output);

[[nodiscard]] inline bool dilated(const AttentionProblem& problem) {
  return problem.mask.dilation_count > 0;
}

// The pieces of a pass's workspace that the sequence itself uses; a row's own come on top. Without memory
// they have sizes only. Null where a problem does not need them.
struct Workspace {
  // What depends on the row.
  struct Needs {
    bool intervals = true;       // kernels read them from memory
    bool row_statistics = true;  // backward's kernels read row_shift and row_dot
    bool query_gradient = true;  // dQ is summed in rows of f32
    std::int64_t key_parts = 1;  // dK and dV are summed by so many blocks, each of a part of a group's heads
  };
  void take(const AttentionProblem& problem, Pass pass, const Needs& needs, Pieces& pieces);

  RowLists lists;
  float* output = nullptr;       // [batch, seq_q, heads_q, head_dim]: sums over patterns, or O of one alone
  float* pattern_lse = nullptr;  // [batch, heads_q, seq_q]: of that one
  float* row_shift = nullptr;    // [batch, heads_q, seq_q]
  float* row_dot = nullptr;
  float* query_gradient = nullptr;  // [batch, seq_q, heads_q, head_dim]
  float* key_gradient = nullptr;    // [parts, batch, seq_k, heads_kv, head_dim]
  float* value_gradient = nullptr;
  std::int64_t key_parts = 1;
  bool adds_key_gradients = false;  // launches add to what earlier ones wrote
  std::int64_t bytes = 0;
};

// A row's workspace in the memory it is given.
template <std::derived_from<Workspace> RowWorkspace>
[[nodiscard]] RowWorkspace workspace_in(const TensorView& memory, const AttentionProblem& problem, Pass pass,
                                        const auto&... more) {
  const std::int64_t needed = RowWorkspace(problem, pass, nullptr).bytes;
  check(memory.elements() >= needed, "attention needs a workspace of {} bytes, not {}", needed,
        memory.elements());
  return RowWorkspace(problem, pass, static_cast<std::byte*>(memory.raw()), more...);
}

// What a row brings to the sequence: launches for one pattern of a problem. The call says which.
template <class Row>
concept RowLaunches = requires(const Row& row, const AttentionCall& call, const TypedHeadsView& view) {
  { row.workspace } -> std::convertible_to<const Workspace&>;
  { row.shared } -> std::convertible_to<const SharedLaunches&>;
  { row.stream } -> std::convertible_to<const Stream&>;
  row.write_lists(call);         // what its kernels read of the mask
  row.forward(call);             // O and lse
  row.pattern_statistics(call);  // what its backward reads of O, dO and lse
  row.backward(call);            // dQ, dK and dV of the query heads [group_begin, group_end) of each group
  row.zero(call, view, 0, 0);
};

// f32 sums in the shape of a tensor, or, where there are none, the tensor itself.
[[nodiscard]] inline TypedHeadsView sums_view(float* sums, const TensorView& tensor) {
  return heads_view(sums == nullptr ? tensor : TensorView(sums, DType::f32, tensor.shape()));
}

template <RowLaunches Row>
void run_forward(const AttentionProblem& problem, const AttentionForward& views, const Row& row) {
  if (views.lse.elements() == 0) return;
  const Workspace& workspace = row.workspace;
  AttentionCall call = attention_call(problem, views);
  call.lists = workspace.lists;
  call.output = sums_view(workspace.output, views.output);
  if (dilated(problem) || problem.seq_k == 0) {
    // Before its first pattern a row has seen nothing, its sink, or what it resumes from; rows that take no
    // part stay so.
    if (!problem.resume) row.shared.start_rows(call, row.stream);
    call.resume = true;
  }
  const int patterns = problem.seq_k == 0 ? 0 : problem.mask.patterns_per_head();
  for (call.pattern = 0; call.pattern < patterns; ++call.pattern) {
    row.write_lists(call);
    row.forward(call);
  }
  if (workspace.output != nullptr) {
    row.shared.narrow(call, heads_view(views.output), call.output, problem.seq_q, problem.heads_q, 1, false,
                      row.stream);
  }
}

template <RowLaunches Row>
void run_backward(const AttentionProblem& problem, const AttentionBackward& views, const Row& row) {
  const Workspace& workspace = row.workspace;
  AttentionCall call = attention_call(problem, views.forward);
  call.lists = workspace.lists;
  call.output_gradient = heads_view(views.output_gradient);
  call.query_gradient = sums_view(workspace.query_gradient, views.query_gradient);
  call.key_gradient = sums_view(workspace.key_gradient, views.key_gradient);
  call.value_gradient = sums_view(workspace.value_gradient, views.value_gradient);
  if (views.lse_gradient.elements() > 0) call.lse_gradient = views.lse_gradient.data<float>();
  if (problem.sinks) call.sinks_gradient = views.sinks_gradient.data<float>();
  call.row_shift = workspace.row_shift;
  call.row_dot = workspace.row_dot;
  const bool own_key_sums = workspace.key_gradient != nullptr;  // what is added to comes in at the end
  call.add_key_gradients = workspace.adds_key_gradients || (problem.add_gradients && !own_key_sums);

  if (workspace.row_dot != nullptr) row.shared.row_statistics(call, row.stream);
  if (problem.sinks) row.shared.sinks_gradient(call, row.stream);
  // Rows that take no part in a dilated pattern keep what they start with: zeros, or what is added to.
  const bool nothing_seen = problem.seq_q == 0 || problem.seq_k == 0;
  const bool some_take_no_part = dilated(problem) || nothing_seen;
  const bool starts_from_zero = !problem.add_gradients;
  if (starts_from_zero && (Row::kAddsQueryGradient || some_take_no_part)) {
    row.zero(call, call.query_gradient, problem.seq_q, problem.heads_q);
  }
  if ((starts_from_zero || own_key_sums) && some_take_no_part) {
    AttentionCall parts = call;
    parts.batch *= workspace.key_parts;
    row.zero(parts, call.key_gradient, problem.seq_k, problem.heads_kv);
    row.zero(parts, call.value_gradient, problem.seq_k, problem.heads_kv);
  }
  const int patterns = nothing_seen ? 0 : problem.mask.patterns_per_head();
  const std::int64_t heads = dilated(problem) ? 1 : call.group();  // of a group, in one launch
  for (call.pattern = 0; call.pattern < patterns; ++call.pattern) {
    row.write_lists(call);
    if (problem.mask.detach_mixing) {
      // With the weights constant, a pattern's gradient is that of its own softmax: dS <- w P (dP - dO .
      // O_pattern), where w P is made from the merged lse.
      call.output = sums_view(workspace.output, views.forward.output);
      AttentionCall alone = call;
      alone.lse = workspace.pattern_lse;
      row.shared.start_rows(alone, row.stream);
      row.forward(alone);
    }
    row.pattern_statistics(call);
    for (call.group_begin = 0; call.group_begin < call.group(); call.group_begin += heads) {
      call.group_end = call.group_begin + heads;
      row.backward(call);
    }
  }
  const auto round = [&](float* sums, const TensorView& to, const TypedHeadsView& from, std::int64_t parts) {
    if (sums == nullptr) return;
    row.shared.narrow(call, heads_view(to), from, to.extent(1), to.extent(2), parts, problem.add_gradients,
                      row.stream);
  };
  round(workspace.query_gradient, views.query_gradient, call.query_gradient, 1);
  round(workspace.key_gradient, views.key_gradient, call.key_gradient, workspace.key_parts);
  round(workspace.value_gradient, views.value_gradient, call.value_gradient, workspace.key_parts);
}

}  // namespace headroom::cuda
