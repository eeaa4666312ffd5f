#include "attention/cuda/steps.h"

#include <algorithm>
#include <limits>

#include "attention/implementations.h"
#include "core/pieces.h"
#include "headroom/core/checked.h"

namespace headroom::cuda {
namespace {

bool dilated(const AttentionProblem& problem) {
  return problem.mask.dilation_count > 0;
}

std::int64_t group_size(const AttentionProblem& problem) {
  return problem.heads_q / problem.heads_kv;
}

struct Memory {
  Memory(const AttentionProblem& problem, Pass pass, std::byte* base) {
    const bool backward = pass == Pass::backward;
    const bool mixes = problem.mask.patterns_per_head() > 1;
    const bool wide = problem.dtype != DType::f32;  // sums need more than the gradients hold
    const std::int64_t statistics = problem.batch * problem.heads_q * problem.seq_q;
    const std::int64_t q_elements = checked_multiply(statistics, problem.head_dim);
    const std::int64_t k_elements =
        checked_multiply(problem.batch * problem.seq_k * problem.heads_kv, problem.head_dim);
    // Heads of a K/V group differ in the rows that take part.
    adds_key_gradients = mixes || (dilated(problem) && group_size(problem) > 1);

    Pieces pieces(base);
    if (dilated(problem)) {
      take_dilated_lists(problem, lists, pieces);
    } else {
      lists.capacity = problem.seq_q;
      lists.key_capacity = problem.seq_k;
      lists.first = pieces.take<std::int32_t>(checked_multiply(problem.batch, lists.capacity));
      lists.last = pieces.take<std::int32_t>(checked_multiply(problem.batch, lists.capacity));
    }
    lists.key_tiles = divide_up(lists.key_capacity, kTileKeys);
    const std::int64_t count = problem.batch * (dilated(problem) ? problem.heads_q : 1);
    if (!backward && mixes && problem.dtype_of_output() != DType::f32) {
      output = pieces.take<float>(q_elements);
    }
    if (backward) {
      lists.seen_by = pieces.take<Range>(checked_multiply(count, lists.key_tiles));
      row_shift = pieces.take<float>(statistics);
      row_dot = pieces.take<float>(statistics);
      next_share = pieces.take<std::int32_t>(1);
      if (problem.deterministic) {
        turns_per_head =
            ceil_div(problem.head_dim, kGradientColumns) *
            QueryTiling::of(problem.mask.block_rows, problem.seq_q, kLeastTileRows).count(lists.capacity);
        turns = pieces.take<std::int32_t>(checked_multiply(problem.batch * problem.heads_q, turns_per_head));
      }
      if (wide) query_gradient = pieces.take<float>(q_elements);
      if (wide && adds_key_gradients) {
        key_gradient = pieces.take<float>(k_elements);
        value_gradient = pieces.take<float>(k_elements);
      }
      if (problem.mask.detach_mixing) {
        output = pieces.take<float>(q_elements);
        pattern_lse = pieces.take<float>(statistics);
      }
    }
    bytes = pieces.bytes();
  }

  RowLists lists;
  float* output = nullptr;  // [batch, seq_q, heads_q, head_dim]: sums over patterns, or O of one alone
  float* row_shift = nullptr;
  float* row_dot = nullptr;
  float* query_gradient = nullptr;  // [batch, seq_q, heads_q, head_dim]
  float* key_gradient = nullptr;    // [batch, seq_k, heads_kv, head_dim]
  float* value_gradient = nullptr;
  float* pattern_lse = nullptr;  // [batch, heads_q, seq_q]
  std::int32_t* next_share = nullptr;
  std::int32_t* turns = nullptr;
  std::int64_t turns_per_head = 0;
  bool adds_key_gradients = false;
  std::int64_t bytes = 0;
};

void check_workspace(const AttentionProblem& problem, Pass pass, const TensorView& workspace) {
  const std::int64_t needed = interval_workspace_bytes(problem, pass);
  check(workspace.elements() >= needed, "attention needs a workspace of {} bytes, not {}", needed,
        workspace.elements());
}

}  // namespace

TypedHeadsView heads_view(const TensorView& view) {
  const std::int64_t unit = 4 * size_bytes(view.dtype());  // bytes that move as one
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(view.raw()) % static_cast<std::uintptr_t>(unit) == 0 &&
      view.stride(0) % 4 == 0 && view.stride(1) % 4 == 0 && view.stride(2) % 4 == 0;
  return {view.raw(), view.stride(0), view.stride(1), view.stride(2), view.dtype(), aligned};
}

TypedHeadsView sums_view(float* sums, const TensorView& tensor) {
  return heads_view(sums == nullptr ? tensor : TensorView(sums, DType::f32, tensor.shape()));
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
  return call;
}

MergeCall merge_call(const AttentionPartial& into, const AttentionPartial& from) {
  const auto side = [](const AttentionPartial& partial) {
    return MergeSide{heads_view(partial.output), partial.lse.data<float>(), partial.lse.stride(0),
                     partial.lse.stride(1), partial.lse.stride(2)};
  };
  const TensorView& rows = into.output;
  return {.into = side(into),
          .from = side(from),
          .batch = rows.extent(0),
          .rows = rows.extent(1),
          .heads = rows.extent(2),
          .head_dim = static_cast<std::int32_t>(rows.extent(3))};
}

Support supports_intervals(const AttentionProblem& problem, const DeviceDescription& device) {
  if (device.kind != DeviceKind::cuda) return Support::no("runs on CUDA GPUs only");
  constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max() - 1024;
  if (problem.seq_q > kMaxRows || problem.seq_k > kMaxRows) {
    return Support::no(
        fmt::format("seq_q {} or seq_k {} is over {}", problem.seq_q, problem.seq_k, kMaxRows));
  }
  if (problem.mask.dilation_count > 0 && problem.mask.block_rows > 0) {
    return Support::no("does not combine block lists with dilation");
  }
  if (problem.mask.detach_mixing && problem.sinks) {
    return Support::no("detached mixing with sinks has no definition");
  }
  return Support::yes();
}

void take_dilated_lists(const AttentionProblem& problem, RowLists& lists, Pieces& pieces) {
  const std::int64_t count = problem.batch * problem.heads_q;
  lists.per_head = true;
  lists.capacity = most_dilated_rows(problem, problem.seq_q, problem.query_start());
  lists.key_capacity = most_dilated_rows(problem, problem.seq_k, problem.key_start());
  lists.first = pieces.take<std::int32_t>(checked_multiply(count, lists.capacity));
  lists.last = pieces.take<std::int32_t>(checked_multiply(count, lists.capacity));
  lists.key_rows = lists.rows = pieces.take<std::int32_t>(checked_multiply(count, lists.capacity));
  lists.key_counts = lists.counts = pieces.take<std::int32_t>(count);
  if (problem.same_positions()) return;
  lists.key_rows = pieces.take<std::int32_t>(checked_multiply(count, lists.key_capacity));
  lists.key_counts = pieces.take<std::int32_t>(count);
}

std::int64_t interval_workspace_bytes(const AttentionProblem& problem, Pass pass) {
  return Memory(problem, pass, nullptr).bytes;
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

void forward_steps(const AttentionProblem& problem, const AttentionForward& views,
                   const TensorView& workspace, const IntervalKernels& kernels, const Stream& stream) {
  check_workspace(problem, Pass::forward, workspace);
  if (views.lse.elements() == 0) return;
  const Memory memory(problem, Pass::forward, static_cast<std::byte*>(workspace.raw()));
  AttentionCall call = attention_call(problem, views);
  call.lists = memory.lists;
  if (!dilated(problem)) {
    kernels.write_lists(call, stream);
    kernels.forward(call, stream);
    return;
  }
  // Before its first pattern a row has seen nothing, its sink, or what it resumes from; rows that take no
  // part stay so.
  call.output = sums_view(memory.output, views.output);
  if (!problem.resume) kernels.start_rows(call, stream);
  call.resume = true;
  for (call.pattern = 0; call.pattern < problem.mask.patterns_per_head(); ++call.pattern) {
    kernels.write_lists(call, stream);
    kernels.forward(call, stream);
  }
  if (memory.output != nullptr) {
    kernels.narrow(call, heads_view(views.output), call.output, problem.seq_q, problem.heads_q, stream);
  }
}

void backward_steps(const AttentionProblem& problem, const AttentionBackward& views,
                    const TensorView& workspace, const IntervalKernels& kernels, const Stream& stream) {
  check_workspace(problem, Pass::backward, workspace);
  const Memory memory(problem, Pass::backward, static_cast<std::byte*>(workspace.raw()));
  AttentionCall call = attention_call(problem, views.forward);
  call.lists = memory.lists;
  call.output_gradient = heads_view(views.output_gradient);
  call.query_gradient = sums_view(memory.query_gradient, views.query_gradient);
  call.key_gradient = sums_view(memory.key_gradient, views.key_gradient);
  call.value_gradient = sums_view(memory.value_gradient, views.value_gradient);
  if (views.lse_gradient.elements() > 0) call.lse_gradient = views.lse_gradient.data<float>();
  if (problem.sinks) call.sinks_gradient = views.sinks_gradient.data<float>();
  call.row_shift = memory.row_shift;
  call.row_dot = memory.row_dot;
  call.next_share = memory.next_share;
  call.turns = memory.turns;
  call.turns_per_head = memory.turns_per_head;
  call.add_key_gradients = memory.adds_key_gradients;

  kernels.row_statistics(call, stream);
  if (problem.sinks) kernels.sinks_gradient(call, stream);
  kernels.zero(call, call.query_gradient, problem.seq_q, problem.heads_q, stream);
  // Rows that take no part in a dilated pattern keep what they start with.
  if (dilated(problem)) {
    kernels.zero(call, call.key_gradient, problem.seq_k, problem.heads_kv, stream);
    kernels.zero(call, call.value_gradient, problem.seq_k, problem.heads_kv, stream);
  }
  const std::int64_t members = dilated(problem) ? 1 : group_size(problem);  // of a launch
  for (call.pattern = 0; call.pattern < problem.mask.patterns_per_head(); ++call.pattern) {
    kernels.write_lists(call, stream);
    kernels.write_visitors(call, stream);
    if (problem.mask.detach_mixing) {
      // With the weights constant, a pattern's gradient is that of its own softmax: dS <- w P (dP - dO .
      // O_pattern), where w P is made from the merged lse.
      AttentionCall alone = call;
      alone.output = sums_view(memory.output, views.forward.output);
      alone.lse = memory.pattern_lse;
      kernels.start_rows(alone, stream);
      kernels.forward(alone, stream);
      alone.lse = call.lse;
      kernels.row_statistics(alone, stream);
    }
    for (call.group_begin = 0; call.group_begin < group_size(problem); call.group_begin += members) {
      call.group_end = call.group_begin + members;
      kernels.backward(call, stream);
    }
  }
  if (memory.query_gradient != nullptr) {
    kernels.narrow(call, heads_view(views.query_gradient), call.query_gradient, problem.seq_q,
                   problem.heads_q, stream);
  }
  if (memory.key_gradient != nullptr) {
    kernels.narrow(call, heads_view(views.key_gradient), call.key_gradient, problem.seq_k, problem.heads_kv,
                   stream);
    kernels.narrow(call, heads_view(views.value_gradient), call.value_gradient, problem.seq_k,
                   problem.heads_kv, stream);
  }
}

}  // namespace headroom::cuda
