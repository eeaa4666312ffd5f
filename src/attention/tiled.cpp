// Attention in tiles with an online softmax: O(seq) memory, forward and backward, on the CPU's vector units.
// What a mask leaves a query is one interval of keys, so that is what the kernels take (src/attention/cpu).
// Dilation is a view: the rows of a segment that take part are a strided tensor, and an attention problem of
// their own.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/cpu/intervals.h"
#include "attention/elements.h"
#include "attention/implementations.h"
#include "headroom/core/checked.h"
#include "headroom/cpu/thread_pool.h"

namespace headroom {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// ---- memory: one layout, counted for workspace_bytes and handed out in a call

class Pieces {
 public:
  explicit Pieces(std::uint8_t* base) : base_(base) {}

  template <class T>
  T* take(std::int64_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + taken_);
    taken_ = checked_add(taken_, round_up(checked_multiply(count, sizeof(T)), 64));
    return piece;
  }
  std::span<std::byte> take_bytes(std::int64_t bytes) {
    return {take<std::byte>(bytes), static_cast<std::size_t>(base_ == nullptr ? 0 : bytes)};
  }
  [[nodiscard]] std::int64_t taken() const { return taken_; }

 private:
  std::uint8_t* base_;
  std::int64_t taken_ = 0;
};

cpu::AttentionSizes sizes_of(const AttentionProblem& problem, const DeviceDescription& device) {
  return {.batch = problem.batch,
          .seq_q = problem.seq_q,
          .seq_k = problem.seq_k,
          .heads_q = problem.heads_q,
          .heads_kv = problem.heads_kv,
          .head_dim = static_cast<int>(problem.head_dim),
          .dtype = problem.dtype,
          .output_dtype = problem.dtype,
          .gradient_dtype = problem.dtype,
          .threads = device.cores};
}

std::int64_t kernel_bytes(const cpu::AttentionSizes& sizes, const DeviceDescription& device, Pass pass) {
  const cpu::AttentionKernels& kernels = cpu::attention_kernels(device.simd);
  return pass == Pass::forward ? cpu::forward_workspace_bytes(sizes, kernels)
                               : cpu::backward_workspace_bytes(sizes, kernels);
}

cpu::HeadsView heads_view(const TensorView& view) {
  return {view.raw(), view.stride(0), view.stride(1), view.stride(2)};
}

// ---- one sequence per head: intervals, and key lists where the mask is block-sparse

// Rows of a query tile: those of a list's tile, or the largest part of it that kernels take.
int query_tile_rows(const Mask& mask) {
  if (mask.block_rows == 0) return cpu::kTileQ;
  std::int64_t rows = std::min<std::int64_t>(mask.block_rows, cpu::kTileQ);
  while (mask.block_rows % rows != 0) --rows;
  return static_cast<int>(rows);
}

struct IntervalMemory {
  IntervalMemory(const AttentionProblem& problem, const DeviceDescription& device, Pass pass,
                 std::uint8_t* base) {
    sizes = sizes_of(problem, device);
    sizes.tile_q = query_tile_rows(problem.mask);
    Pieces pieces(base);
    first = pieces.take<std::int32_t>(problem.batch * problem.seq_q);
    last = pieces.take<std::int32_t>(problem.batch * problem.seq_q);
    if (problem.mask.block_rows > 0) {
      const std::int64_t tiles = problem.batch * problem.heads_q * sizes.q_tiles();
      spans = pieces.take<cpu::KeySpan>(checked_multiply(tiles, problem.mask.max_blocks_per_row));
      span_starts = pieces.take<std::int64_t>(tiles + 1);
    }
    kernel = pieces.take_bytes(kernel_bytes(sizes, device, pass));
    bytes = pieces.taken();
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
  std::int64_t tile = 0;
  std::int64_t count = 0;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    for (std::int64_t h = 0; h < problem.heads_q; ++h) {
      for (std::int64_t i = 0; i < memory.sizes.q_tiles(); ++i, ++tile) {
        memory.span_starts[tile] = count;
        const std::int32_t* list = views.blocks.data<std::int32_t>() +
                                   views.blocks.offset(b, h, i * memory.sizes.tile_q / mask.block_rows);
        for (std::int64_t n = 0; n < mask.max_blocks_per_row && list[n] >= 0; ++n) {
          const auto begin = static_cast<std::int32_t>(std::min(list[n] * mask.block_columns, problem.seq_k));
          const auto end = static_cast<std::int32_t>(std::min(begin + mask.block_columns, problem.seq_k));
          const bool joins = count > memory.span_starts[tile] && memory.spans[count - 1].end == begin;
          if (joins) {
            memory.spans[count - 1].end = end;
          } else {
            memory.spans[count++] = {begin, end};
          }
        }
      }
    }
  }
  memory.span_starts[tile] = count;
}

cpu::AttentionForwardCall interval_call(const AttentionProblem& problem, const AttentionForward& views,
                                        const IntervalMemory& memory) {
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const MaskView mask = mask_view(problem, views, b, 0);
    for (std::int64_t q = 0; q < problem.seq_q; ++q) {
      const KeyRange range = mask.interval(q);
      memory.first[b * problem.seq_q + q] = static_cast<std::int32_t>(std::max<std::int64_t>(range.begin, 0));
      memory.last[b * problem.seq_q + q] = static_cast<std::int32_t>(std::max<std::int64_t>(range.end, 0));
    }
  }
  if (problem.mask.block_rows > 0) write_spans(problem, views, memory);
  return {.sizes = memory.sizes,
          .scale = score_scale(problem),
          .softcap = problem.softcap,
          .mask = {memory.first, memory.last, problem.seq_q, 0, memory.spans, memory.span_starts},
          .query = heads_view(views.query),
          .key = heads_view(views.key),
          .value = heads_view(views.value),
          .output = heads_view(views.output),
          .sinks = problem.sinks ? views.sinks.data<float>() : nullptr,
          .lse = views.lse.data<float>()};
}

// ---- dilation: the rows of a segment that take part are a problem of their own

// Rows first, first + rate, ... of one head, `count` of them.
struct DilatedRows {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t first = 0;
  std::int64_t rate = 1;
  std::int64_t count = 0;
};

// Every (head, pattern, segment) with at least one row, in a fixed order.
template <class Body>
void for_each_segment(const AttentionProblem& problem, const AttentionForward& views, const Body& body) {
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    for (std::int64_t h = 0; h < problem.heads_q; ++h) {
      for (int pattern = 0; pattern < problem.mask.patterns_per_head(); ++pattern) {
        const MaskView mask = mask_view(problem, views, b, h, pattern);
        for (std::int64_t row = 0; row < problem.seq_q;) {
          const KeyRange segment = mask.segment(row);
          const std::int64_t first = segment.begin + mask.dilation_offset;
          const std::int64_t count =
              first < segment.end ? divide_up(segment.end - first, mask.dilation.rate) : 0;
          if (count > 0) body(mask, DilatedRows{b, h, first, mask.dilation.rate, count});
          row = segment.end;
        }
      }
    }
  }
}

// The most rows that one segment can have.
std::int64_t most_rows(const AttentionProblem& problem) {
  std::int64_t most = 0;
  for (int i = 0; i < problem.mask.dilation_count; ++i) {
    const Dilation& dilation = problem.mask.dilations[static_cast<std::size_t>(i)];
    most = std::max(most, divide_up(std::min(dilation.segment, problem.seq_q), dilation.rate));
  }
  return most;
}

struct DilatedMemory {
  DilatedMemory(const AttentionProblem& problem, const DeviceDescription& device, Pass pass,
                std::uint8_t* base) {
    sizes = sizes_of(problem, device);
    sizes.batch = sizes.heads_q = sizes.heads_kv = 1;
    sizes.seq_q = sizes.seq_k = most_rows(problem);
    sizes.gradient_dtype = DType::f32;
    sizes.add_gradients = true;
    const bool mixes = problem.mask.patterns_per_head() > 1;
    Pieces pieces(base);
    first = pieces.take<std::int32_t>(sizes.seq_q);
    last = pieces.take<std::int32_t>(sizes.seq_q);
    lse = pieces.take<float>(sizes.seq_q);
    lse_gradient = pieces.take<float>(sizes.seq_q);
    const std::int64_t q_elements = problem.batch * problem.seq_q * problem.heads_q * problem.head_dim;
    const std::int64_t k_elements = problem.batch * problem.seq_k * problem.heads_kv * problem.head_dim;
    if (mixes) partial = pieces.take<float>(sizes.seq_q * problem.head_dim);
    if (pass == Pass::forward && mixes) output = pieces.take<float>(q_elements);
    if (pass == Pass::backward) {
      query_gradient = pieces.take<float>(q_elements);
      key_gradient = pieces.take<float>(k_elements);
      value_gradient = pieces.take<float>(k_elements);
    }
    // A detached pattern's own output is made again in backward.
    kernel_offset_bytes = kernel_bytes(sizes, device, pass);
    if (pass == Pass::backward)
      kernel_offset_bytes = std::max(kernel_offset_bytes, kernel_bytes(sizes, device, Pass::forward));
    kernel = pieces.take_bytes(kernel_offset_bytes);
    bytes = pieces.taken();
  }

  cpu::AttentionSizes sizes;
  std::int32_t *first = nullptr, *last = nullptr;  // [rows of a segment]
  float *lse = nullptr, *lse_gradient = nullptr;   // [rows of a segment]
  float* partial = nullptr;                        // [rows of a segment, head_dim]: O of one pattern
  float* output = nullptr;          // [batch, seq_q, heads_q, head_dim]: patterns merged so far
  float* query_gradient = nullptr;  // [batch, seq_q, heads_q, head_dim]
  float *key_gradient = nullptr, *value_gradient = nullptr;  // [batch, seq_k, heads_kv, head_dim]
  std::int64_t kernel_offset_bytes = 0;
  std::span<std::byte> kernel;
  std::int64_t bytes = 0;
};

cpu::HeadsView strided_rows(const TensorView& view, const DilatedRows& rows, std::int64_t head) {
  return {static_cast<std::byte*>(view.raw()) +
              view.offset(rows.batch, rows.first, head) * size_bytes(view.dtype()),
          0, view.stride(1) * rows.rate, 0};
}

// An f32 accumulator with the shape of a tensor.
TensorView accumulator(float* data, const TensorView& like) {
  return {data, DType::f32, like.shape()};
}

// The segment as a dense problem: what the mask leaves row i, counted in the rows that take part.
cpu::AttentionForwardCall segment_call(const AttentionProblem& problem, const AttentionForward& views,
                                       const DilatedMemory& memory, const MaskView& mask,
                                       const DilatedRows& rows) {
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const KeyRange range = mask.interval(rows.first + i * rows.rate);
    const auto index = [&](std::int64_t key) {
      return static_cast<std::int32_t>(key <= rows.first ? 0 : divide_up(key - rows.first, rows.rate));
    };
    memory.first[i] = index(range.begin);
    memory.last[i] = std::min(index(range.end), static_cast<std::int32_t>(rows.count));
  }
  cpu::AttentionSizes sizes = memory.sizes;
  sizes.seq_q = sizes.seq_k = rows.count;
  const std::int64_t kv = rows.head / (problem.heads_q / problem.heads_kv);
  return {.sizes = sizes,
          .scale = score_scale(problem),
          .softcap = problem.softcap,
          .mask = {memory.first, memory.last, 0, 0, nullptr, nullptr},
          .query = strided_rows(views.query, rows, rows.head),
          .key = strided_rows(views.key, rows, kv),
          .value = strided_rows(views.value, rows, kv),
          .output = strided_rows(views.output, rows, rows.head),
          .sinks = nullptr,
          .lse = memory.lse};
}

// O of one pattern alone, in f32, and its lse.
void run_partial(cpu::AttentionForwardCall call, const DilatedMemory& memory,
                 const cpu::AttentionKernels& kernels, const Stream& stream) {
  call.sizes.output_dtype = DType::f32;
  call.output = {memory.partial, 0, call.sizes.head_dim, 0};
  cpu::attention_forward(call, kernels, memory.kernel, stream);
}

// (O, lse) <- the merge of (O, lse) and the segment's partial; either may be empty
void merge_partial(const AttentionProblem& problem, const TensorView& output, float* lse,
                   const DilatedMemory& memory, const DilatedRows& rows) {
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t row = rows.first + i * rows.rate;
    float& merged = lse[statistics_row(problem, rows.batch, rows.head, row)];
    const float highest = std::max(merged, memory.lse[i]);
    if (highest == -kInfinity) continue;
    const float total = highest + std::log(std::exp(merged - highest) + std::exp(memory.lse[i] - highest));
    const float old_weight = std::exp(merged - total);
    const float new_weight = std::exp(memory.lse[i] - total);
    float* to = output.data<float>() + output.offset(rows.batch, row, rows.head);
    for (std::int64_t c = 0; c < problem.head_dim; ++c) {
      to[c] = old_weight * to[c] + new_weight * memory.partial[i * problem.head_dim + c];
    }
    merged = total;
  }
}

// dst <- src, in the problem's dtype
void narrow(const TensorView& src, const TensorView& dst, const Stream& stream) {
  parallel_for(stream, src.extent(0) * src.extent(1), [&](std::int64_t item) {
    const std::int64_t b = item / src.extent(1);
    const std::int64_t row = item % src.extent(1);
    for (std::int64_t h = 0; h < src.extent(2); ++h) {
      const float* from = src.data<float>() + src.offset(b, row, h);
      for (std::int64_t c = 0; c < src.extent(3); ++c) write_element(dst, dst.offset(b, row, h, c), from[c]);
    }
  });
}

void zero(const TensorView& view, const Stream& stream) {
  parallel_for(stream, view.extent(0) * view.extent(1), [&](std::int64_t item) {
    const std::int64_t b = item / view.extent(1);
    const std::int64_t row = item % view.extent(1);
    for (std::int64_t h = 0; h < view.extent(2); ++h) {
      std::memset(static_cast<std::byte*>(view.raw()) + view.offset(b, row, h) * size_bytes(view.dtype()), 0,
                  static_cast<std::size_t>(view.extent(3) * size_bytes(view.dtype())));
    }
  });
}

void forward_dilated(const AttentionProblem& problem, const AttentionForward& views,
                     const DilatedMemory& memory, const Stream& stream) {
  const cpu::AttentionKernels& kernels = cpu::attention_kernels(stream.device->simd);
  const bool mixes = problem.mask.patterns_per_head() > 1;
  const TensorView output = mixes ? accumulator(memory.output, views.output) : views.output;
  zero(output, stream);  // rows that take no part
  float* lse = views.lse.data<float>();
  for (std::int64_t i = 0; i < views.lse.elements(); ++i) {
    lse[i] = problem.sinks ? views.sinks.data<float>()[i / problem.seq_q % problem.heads_q] : -kInfinity;
  }
  for_each_segment(problem, views, [&](const MaskView& mask, const DilatedRows& rows) {
    cpu::AttentionForwardCall call = segment_call(problem, views, memory, mask, rows);
    if (mixes) {
      run_partial(call, memory, kernels, stream);
      merge_partial(problem, output, lse, memory, rows);
      return;
    }
    if (problem.sinks) call.sinks = views.sinks.data<float>() + rows.head;
    cpu::attention_forward(call, kernels, memory.kernel, stream);
    for (std::int64_t i = 0; i < rows.count; ++i) {
      lse[statistics_row(problem, rows.batch, rows.head, rows.first + i * rows.rate)] = memory.lse[i];
    }
  });
  if (mixes) narrow(output, views.output, stream);
}

// dSink <- -sum over rows of exp(sink - lse) * (dO . O - dLSE), rows that take no part included
void sinks_backward(const AttentionProblem& problem, const AttentionBackward& views, const Stream& stream) {
  parallel_for(stream, problem.heads_q, [&](std::int64_t h) {
    const AttentionForward& inputs = views.forward;
    double sum = 0;
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      for (std::int64_t q = 0; q < problem.seq_q; ++q) {
        double dot = 0;
        for (std::int64_t c = 0; c < problem.head_dim; ++c) {
          dot += read_element(views.output_gradient, views.output_gradient.offset(b, q, h, c)) *
                 read_element(inputs.output, inputs.output.offset(b, q, h, c));
        }
        const std::int64_t row = statistics_row(problem, b, h, q);
        if (views.lse_gradient.elements() > 0) dot -= views.lse_gradient.data<float>()[row];
        sum -= std::exp(double{inputs.sinks.data<float>()[h]} - inputs.lse.data<float>()[row]) * dot;
      }
    }
    views.sinks_gradient.data<float>()[h] = static_cast<float>(sum);
  });
}

void backward_dilated(const AttentionProblem& problem, const AttentionBackward& views,
                      const DilatedMemory& memory, const Stream& stream) {
  const cpu::AttentionKernels& kernels = cpu::attention_kernels(stream.device->simd);
  const TensorView query_gradient = accumulator(memory.query_gradient, views.query_gradient);
  const TensorView key_gradient = accumulator(memory.key_gradient, views.key_gradient);
  const TensorView value_gradient = accumulator(memory.value_gradient, views.value_gradient);
  for (const TensorView& view : {query_gradient, key_gradient, value_gradient}) zero(view, stream);
  const float* lse = views.forward.lse.data<float>();
  for_each_segment(problem, views.forward, [&](const MaskView& mask, const DilatedRows& rows) {
    cpu::AttentionForwardCall call = segment_call(problem, views.forward, memory, mask, rows);
    if (problem.mask.detach_mixing) {
      // With the weights constant, a pattern's gradient is that of its own softmax: dS <- w P (dP - dO .
      // O_pattern).
      run_partial(call, memory, kernels, stream);
      call.sizes.output_dtype = DType::f32;
      call.output = {memory.partial, 0, problem.head_dim, 0};
    }
    // Otherwise patterns mixed by their lse are one softmax over all their keys: the merged O and lse serve
    // every pattern.
    const bool through_lse = views.lse_gradient.elements() > 0;
    for (std::int64_t i = 0; i < rows.count; ++i) {
      const std::int64_t row = statistics_row(problem, rows.batch, rows.head, rows.first + i * rows.rate);
      memory.lse[i] = lse[row];
      if (through_lse) memory.lse_gradient[i] = views.lse_gradient.data<float>()[row];
    }
    const std::int64_t kv = rows.head / (problem.heads_q / problem.heads_kv);
    cpu::attention_backward({.forward = call,
                             .output_gradient = strided_rows(views.output_gradient, rows, rows.head),
                             .lse_gradient = through_lse ? memory.lse_gradient : nullptr,
                             .query_gradient = strided_rows(query_gradient, rows, rows.head),
                             .key_gradient = strided_rows(key_gradient, rows, kv),
                             .value_gradient = strided_rows(value_gradient, rows, kv),
                             .sinks_gradient = nullptr},
                            kernels, memory.kernel, stream);
  });
  narrow(query_gradient, views.query_gradient, stream);
  narrow(key_gradient, views.key_gradient, stream);
  narrow(value_gradient, views.value_gradient, stream);
  if (problem.sinks) sinks_backward(problem, views, stream);
}

// ---- the row of the table

void forward(const AttentionProblem& problem, const AttentionForward& views, TensorView workspace,
             const Stream& stream) {
  std::uint8_t* base = workspace.data<std::uint8_t>();
  if (problem.mask.dilation_count > 0) {
    forward_dilated(problem, views, DilatedMemory(problem, *stream.device, Pass::forward, base), stream);
    return;
  }
  const IntervalMemory memory(problem, *stream.device, Pass::forward, base);
  cpu::attention_forward(interval_call(problem, views, memory), cpu::attention_kernels(stream.device->simd),
                         memory.kernel, stream);
}

void backward(const AttentionProblem& problem, const AttentionBackward& views, TensorView workspace,
              const Stream& stream) {
  std::uint8_t* base = workspace.data<std::uint8_t>();
  if (problem.mask.dilation_count > 0) {
    backward_dilated(problem, views, DilatedMemory(problem, *stream.device, Pass::backward, base), stream);
    return;
  }
  const IntervalMemory memory(problem, *stream.device, Pass::backward, base);
  cpu::attention_backward(
      {.forward = interval_call(problem, views.forward, memory),
       .output_gradient = heads_view(views.output_gradient),
       .lse_gradient = views.lse_gradient.elements() == 0 ? nullptr : views.lse_gradient.data<float>(),
       .query_gradient = heads_view(views.query_gradient),
       .key_gradient = heads_view(views.key_gradient),
       .value_gradient = heads_view(views.value_gradient),
       .sinks_gradient = problem.sinks ? views.sinks_gradient.data<float>() : nullptr},
      cpu::attention_kernels(stream.device->simd), memory.kernel, stream);
}

Support supports(const AttentionProblem& problem, const DeviceDescription& device) {
  if (device.kind != DeviceKind::cpu) return Support::no("runs on the CPU only");
  constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max() - cpu::kTileK;
  if (problem.seq_q > kMaxRows || problem.seq_k > kMaxRows) {
    return Support::no(
        fmt::format("seq_q {} or seq_k {} is over {}", problem.seq_q, problem.seq_k, kMaxRows));
  }
  if (problem.mask.dilation_count > 0 && problem.mask.block_rows > 0) {
    return Support::no("does not combine block lists with dilation");
  }
  if (problem.mask.detach_mixing && problem.sinks)
    return Support::no("detached mixing with sinks has no definition");
  return Support::yes();
}

std::int64_t workspace_bytes(const AttentionProblem& problem, const DeviceDescription& device, Pass pass) {
  return problem.mask.dilation_count > 0 ? DilatedMemory(problem, device, pass, nullptr).bytes
                                         : IntervalMemory(problem, device, pass, nullptr).bytes;
}

}  // namespace

const AttentionImplementation& tiled_attention() {
  static constexpr AttentionImplementation kTiled{
      "tiled", supports, workspace_bytes, [](const AttentionProblem&) -> std::int64_t { return 0; },
      forward, backward};
  return kTiled;
}

}  // namespace headroom
