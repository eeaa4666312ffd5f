// Attention in tiles with an online softmax: O(seq) memory, forward and backward, on the CPU's vector units.
// What a mask leaves a query is one interval of keys, of those that block lists name.
#include "attention/tiled.h"

#include <algorithm>
#include <limits>

#include "core/pieces.h"
#include "headroom/cpu/thread_pool.h"

namespace headroom {
namespace {

struct IntervalMemory {
  IntervalMemory(const AttentionProblem& problem, const DeviceDescription& device, Pass pass,
                 std::byte* base) {
    sizes = kernel_sizes(problem, device);
    sizes.block_rows = problem.mask.block_rows;
    Pieces pieces(base);
    first = pieces.take<std::int32_t>(problem.batch * problem.seq_q);
    last = pieces.take<std::int32_t>(problem.batch * problem.seq_q);
    if (problem.mask.block_rows > 0) {
      const std::int64_t lists =
          problem.batch * problem.heads_kv * divide_up(problem.seq_q, sizes.block_rows);
      spans = pieces.take<cpu::KeySpan>(checked_multiply(lists, problem.mask.max_blocks_per_row));
      span_starts = pieces.take<std::int64_t>(lists + 1);
    }
    kernel = pieces.take_bytes(kernel_bytes(sizes, pass));
    bytes = pieces.bytes();
  }

  cpu::AttentionSizes sizes;
  std::int32_t* first = nullptr;
  std::int32_t* last = nullptr;
  cpu::KeySpan* spans = nullptr;
  std::int64_t* span_starts = nullptr;
  std::span<std::byte> kernel;
  std::int64_t bytes = 0;
};

// Lists of key tiles as rising spans of keys, neighbours joined.
void write_spans(const AttentionProblem& problem, const AttentionForward& views,
                 const IntervalMemory& memory) {
  const Mask& mask = problem.mask;
  const TensorView& blocks = views.blocks;
  std::int64_t index = 0;
  std::int64_t count = 0;
  const auto write_list = [&](const std::int32_t* list) {
    memory.span_starts[index] = count;
    for (std::int64_t n = 0; n < mask.max_blocks_per_row && list[n] >= 0; ++n) {
      const auto begin = static_cast<std::int32_t>(std::min(list[n] * mask.block_columns, problem.seq_k));
      const auto end = static_cast<std::int32_t>(std::min(begin + mask.block_columns, problem.seq_k));
      const bool joins = count > memory.span_starts[index] && memory.spans[count - 1].end == begin;
      if (joins) {
        memory.spans[count - 1].end = end;
      } else {
        memory.spans[count++] = {begin, end};
      }
    }
    ++index;
  };
  for (std::int64_t b = 0; b < blocks.extent(0); ++b) {
    for (std::int64_t kv = 0; kv < blocks.extent(1); ++kv) {
      for (std::int64_t row = 0; row < blocks.extent(2); ++row) {
        write_list(blocks.data<std::int32_t>() + blocks.offset(b, kv, row));
      }
    }
  }
  memory.span_starts[index] = count;
}

cpu::AttentionForwardCall interval_call(const AttentionProblem& problem, const AttentionForward& views,
                                        const IntervalMemory& memory, const Stream& stream) {
  constexpr std::int64_t kChunk = 4096;
  const std::int64_t chunks = divide_up(problem.seq_q, kChunk);
  parallel_for(stream, problem.batch * chunks, [&](std::int64_t item) {
    const std::int64_t b = item / chunks;
    const MaskView mask = mask_view(problem, views, b, 0);
    const std::int64_t begin = item % chunks * kChunk;
    for (std::int64_t q = begin; q < std::min(begin + kChunk, problem.seq_q); ++q) {
      const KeyRange range = mask.interval(q);
      memory.first[b * problem.seq_q + q] = static_cast<std::int32_t>(range.begin);
      memory.last[b * problem.seq_q + q] = static_cast<std::int32_t>(range.end);
    }
  });
  if (problem.mask.block_rows > 0) write_spans(problem, views, memory);
  return {.sizes = memory.sizes,
          .scale = score_scale(problem),
          .softcap = problem.softcap,
          .mask = {.first = memory.first,
                   .last = memory.last,
                   .batch_stride = problem.seq_q,
                   .ranges = memory.spans,
                   .range_starts = memory.span_starts},
          .query = heads_view(views.query),
          .key = heads_view(views.key),
          .value = heads_view(views.value),
          .output = heads_view(views.output),
          .sinks = problem.sinks ? views.sinks.data<float>() : nullptr,
          .resume = problem.resume,
          .lse = statistics_view(views.lse),
          .row_sum = statistics_view<double>(views.row_sum)};
}

std::int64_t workspace_bytes(const AttentionProblem& problem, const DeviceDescription& device, Pass pass) {
  return problem.mask.dilation_count > 0 ? dilated_workspace_bytes(problem, device, pass)
                                         : IntervalMemory(problem, device, pass, nullptr).bytes;
}

// A workspace planned for another number of threads would be too small.
void check_workspace(const AttentionProblem& problem, const DeviceDescription& device, Pass pass,
                     const TensorView& workspace) {
  const std::int64_t needed = workspace_bytes(problem, device, pass);
  check(workspace.elements() >= needed, "attention on {} threads needs a workspace of {} bytes, not {}",
        device.cores, needed, workspace.elements());
}

void forward(const AttentionProblem& problem, const AttentionForward& views, TensorView workspace,
             const Stream& stream) {
  auto* base = static_cast<std::byte*>(workspace.raw());
  check_workspace(problem, *stream.device, Pass::forward, workspace);
  if (problem.mask.dilation_count > 0) return dilated_forward(problem, views, base, stream);
  const IntervalMemory memory(problem, *stream.device, Pass::forward, base);
  cpu::attention_forward(interval_call(problem, views, memory, stream), memory.kernel, stream);
}

void backward(const AttentionProblem& problem, const AttentionBackward& views, TensorView workspace,
              const Stream& stream) {
  auto* base = static_cast<std::byte*>(workspace.raw());
  check_workspace(problem, *stream.device, Pass::backward, workspace);
  if (problem.mask.dilation_count > 0) return dilated_backward(problem, views, base, stream);
  const IntervalMemory memory(problem, *stream.device, Pass::backward, base);
  cpu::attention_backward({.forward = interval_call(problem, views.forward, memory, stream),
                           .output_gradient = heads_view(views.output_gradient),
                           .lse_gradient = statistics_view(views.lse_gradient),
                           .query_gradient = heads_view(views.query_gradient),
                           .key_gradient = heads_view(views.key_gradient),
                           .value_gradient = heads_view(views.value_gradient),
                           .sinks_gradient = problem.sinks ? views.sinks_gradient.data<float>() : nullptr},
                          memory.kernel, stream);
}

Support supports(const AttentionProblem& problem, const DeviceDescription& device) {
  if (device.kind != DeviceKind::cpu) return Support::no("runs on the CPU only");
  if (problem.dtype == DType::f64) return Support::no("the reference alone takes f64");
  if (problem.mask.dilation_count > 0 && problem.mask.block_rows > 0) {
    return Support::no("does not combine block lists with dilation");
  }
  if (problem.mask.detach_mixing && problem.sinks)
    return Support::no("detached mixing with sinks has no definition");
  return Support::yes();
}

}  // namespace

cpu::AttentionSizes kernel_sizes(const AttentionProblem& problem, const DeviceDescription& device) {
  return {.batch = problem.batch,
          .seq_q = problem.seq_q,
          .seq_k = problem.seq_k,
          .heads_q = problem.heads_q,
          .heads_kv = problem.heads_kv,
          .head_dim = static_cast<int>(problem.head_dim),
          .dtype = problem.dtype,
          .output_dtype = problem.dtype_of_output(),
          .output_gradient_dtype = problem.dtype_of_output(),
          .query_gradient_dtype = problem.dtype_of_gradients(),
          .key_gradient_dtype = problem.dtype_of_gradients(),
          .add_query_gradient = problem.add_gradients,
          .add_key_gradients = problem.add_gradients,
          .threads = device.cores,
          .vectors = cpu::vector_shape(device.simd)};
}

std::int64_t kernel_bytes(const cpu::AttentionSizes& sizes, Pass pass) {
  return pass == Pass::forward ? cpu::forward_workspace_bytes(sizes) : cpu::backward_workspace_bytes(sizes);
}

cpu::HeadsView heads_view(const TensorView& view) {
  return {view.raw(), view.stride(0), view.stride(1), view.stride(2)};
}

const AttentionImplementation& tiled_attention() {
  static constexpr AttentionImplementation kTiled{
      "tiled", supports, workspace_bytes, [](const AttentionProblem&) -> std::int64_t { return 0; },
      forward, backward};
  return kTiled;
}

}  // namespace headroom
