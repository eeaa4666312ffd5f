// Dilated attention: the queries and keys of a head that take part, segment after segment, are sequences of
// their own in which every query sees one interval. So lists of rows per head turn a pattern into a call of
// the interval kernels. Heads of a K/V group differ in their offset, and mixed patterns in their rows: those
// are calls one after the other, in which the softmax goes on from what is there and gradients are added, in
// a fixed order. Patterns mixed by their log-sum-exp are one softmax over all their keys.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/dilated_rows.h"
#include "attention/tiled.h"
#include "core/pieces.h"
#include "headroom/core/elements.h"
#include "headroom/cpu/thread_pool.h"

namespace headroom {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::int64_t group_size(const AttentionProblem& problem) {
  return problem.heads_q / problem.heads_kv;
}

struct DilatedMemory {
  DilatedMemory(const AttentionProblem& problem, const DeviceDescription& device, Pass pass, std::byte* base)
      : sizes(kernel_sizes(problem, device)) {
    sizes.heads_q = problem.heads_kv;
    sizes.seq_q = most_dilated_rows(problem, problem.seq_q, problem.query_start());
    sizes.seq_k = most_dilated_rows(problem, problem.seq_k, problem.key_start());
    const bool mixes = problem.mask.patterns_per_head() > 1;
    sizes.add_query_gradient = problem.add_gradients || mixes;
    sizes.add_key_gradients = problem.add_gradients || mixes || group_size(problem) > 1;
    const bool wide = problem.dtype_of_gradients() != DType::f32;  // sums need more than the tensors hold
    Pieces pieces(base);
    const std::int64_t heads = problem.batch * problem.heads_kv;
    const std::int64_t q_elements = problem.batch * problem.seq_q * problem.heads_q * problem.head_dim;
    const std::int64_t k_elements = problem.batch * problem.seq_k * problem.heads_kv * problem.head_dim;
    rows = pieces.take<std::int32_t>(heads * sizes.seq_q);
    first = pieces.take<std::int32_t>(heads * sizes.seq_q);
    last = pieces.take<std::int32_t>(heads * sizes.seq_q);
    counts = pieces.take<std::int32_t>(heads);
    key_rows = problem.same_positions() ? rows : pieces.take<std::int32_t>(heads * sizes.seq_k);
    key_counts = problem.same_positions() ? counts : pieces.take<std::int32_t>(heads);
    std::int64_t kernel = kernel_bytes(sizes, pass);
    if (pass == Pass::forward && mixes && problem.dtype_of_output() != DType::f32) {
      output = pieces.take<float>(q_elements);
    }
    if (pass == Pass::backward && wide && sizes.add_query_gradient) {
      query_gradient = pieces.take<float>(q_elements);
    }
    if (pass == Pass::backward && wide && sizes.add_key_gradients) {
      key_gradient = pieces.take<float>(k_elements);
      value_gradient = pieces.take<float>(k_elements);
    }
    if (pass == Pass::backward && problem.mask.detach_mixing) {
      pattern_output = pieces.take<float>(k_elements);
      pattern_lse = pieces.take<float>(heads * problem.seq_q);
      kernel = std::max(kernel, kernel_bytes(sizes, Pass::forward));
    }
    kernels = pieces.take_bytes(kernel);
    bytes = pieces.bytes();
  }

  cpu::AttentionSizes sizes;  // of a call
  std::int32_t* rows;         // [batch, heads_kv, most rows]: queries
  std::int32_t *first, *last;
  std::int32_t* counts;    // [batch, heads_kv]
  std::int32_t* key_rows;  // [batch, heads_kv, most rows]; those of the queries where they are the same
  std::int32_t* key_counts;
  float* output = nullptr;  // [batch, seq, heads_q, head_dim]
  float* query_gradient = nullptr;
  float *key_gradient = nullptr, *value_gradient = nullptr;
  float* pattern_output = nullptr;  // [batch, seq, heads_kv, head_dim]: O of one pattern alone
  float* pattern_lse = nullptr;     // [batch, heads_kv, seq]
  std::span<std::byte> kernels;
  std::int64_t bytes;
};

// One head of every K/V group, in one of its patterns.
struct Part {
  std::int64_t member = 0;
  int pattern = 0;
};

template <class Body>
void for_each_part(const AttentionProblem& problem, const Body& body) {
  for (std::int64_t member = 0; member < group_size(problem); ++member) {
    for (int pattern = 0; pattern < problem.mask.patterns_per_head(); ++pattern) body(Part{member, pattern});
  }
}

// The queries and keys that take part, and what each query sees.
void write_rows(const AttentionProblem& problem, const AttentionForward& views, const DilatedMemory& memory,
                const Part& part, const Stream& stream) {
  parallel_for(stream, problem.batch * problem.heads_kv, [&](std::int64_t item) {
    const std::int64_t head = item % problem.heads_kv * group_size(problem) + part.member;
    const MaskView mask = mask_view(problem, views, item / problem.heads_kv, head, part.pattern);
    const std::int64_t base = item * memory.sizes.seq_q;
    const std::int64_t key_base = item * memory.sizes.seq_k;
    std::int64_t count = 0;
    std::int64_t key_count = 0;
    for (std::int64_t n = 0; n < DilatedDocument::count(mask); ++n) {
      const DilatedDocument document = DilatedDocument::of(mask, n);
      const KeyRange queries = document.members(mask.query_start, mask.seq_q);
      const KeyRange keys = document.members(mask.key_start, mask.seq_k);
      const auto index = [&](std::int64_t member) {
        return static_cast<std::int32_t>(key_count + std::clamp(member, keys.begin, keys.end) - keys.begin);
      };
      for (std::int64_t member = queries.begin; member < queries.end; ++member, ++count) {
        const KeyRange seen = document.seen(mask, member);
        memory.rows[base + count] = static_cast<std::int32_t>(document.position(member) - mask.query_start);
        memory.first[base + count] = index(seen.begin);
        memory.last[base + count] = index(seen.end);
      }
      for (std::int64_t member = keys.begin; member < keys.end; ++member, ++key_count) {
        memory.key_rows[key_base + key_count] =
            static_cast<std::int32_t>(document.position(member) - mask.key_start);
      }
    }
    memory.counts[item] = static_cast<std::int32_t>(count);
    memory.key_counts[item] = static_cast<std::int32_t>(key_count);
  });
}

// Every group_size-th head, from the part's member.
cpu::HeadsView part_heads(const AttentionProblem& problem, const TensorView& view, const Part& part) {
  cpu::HeadsView heads = heads_view(view);
  heads.data = static_cast<std::byte*>(heads.data) + part.member * view.stride(2) * size_bytes(view.dtype());
  heads.head_stride *= group_size(problem);
  return heads;
}

template <class T = float>
cpu::StatisticsView<T> part_statistics(const AttentionProblem& problem, const TensorView& view,
                                       const Part& part) {
  cpu::StatisticsView<T> statistics = statistics_view<T>(view);
  if (statistics.data == nullptr) return {};
  statistics.data += part.member * statistics.head_stride;
  statistics.head_stride *= group_size(problem);
  return statistics;
}

cpu::AttentionForwardCall part_call(const AttentionProblem& problem, const AttentionForward& views,
                                    const TensorView& output, const DilatedMemory& memory, const Part& part,
                                    const Stream& stream) {
  write_rows(problem, views, memory, part, stream);
  cpu::AttentionForwardCall call{.sizes = memory.sizes,
                                 .scale = score_scale(problem),
                                 .softcap = problem.softcap,
                                 .mask = {.first = memory.first,
                                          .last = memory.last,
                                          .batch_stride = problem.heads_kv * memory.sizes.seq_q,
                                          .head_stride = memory.sizes.seq_q,
                                          .queries = {.rows = memory.rows,
                                                      .counts = memory.counts,
                                                      .batch_stride = problem.heads_kv * memory.sizes.seq_q,
                                                      .head_stride = memory.sizes.seq_q},
                                          .keys = {.rows = memory.key_rows,
                                                   .counts = memory.key_counts,
                                                   .batch_stride = problem.heads_kv * memory.sizes.seq_k,
                                                   .head_stride = memory.sizes.seq_k}},
                                 .query = part_heads(problem, views.query, part),
                                 .key = heads_view(views.key),
                                 .value = heads_view(views.value),
                                 .output = part_heads(problem, output, part),
                                 .resume = true,
                                 .lse = part_statistics(problem, views.lse, part),
                                 .row_sum = part_statistics<double>(problem, views.row_sum, part)};
  call.sizes.output_dtype = output.dtype();
  return call;
}

// f32 sums in the shape of a tensor, or the tensor itself where it holds f32.
TensorView sums_of(float* sums, const TensorView& tensor) {
  return sums == nullptr ? tensor : TensorView(sums, DType::f32, tensor.shape());
}

// dst <- src, in dst's dtype
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
        if (inputs.lse.data<float>()[row] == -kInfinity) continue;  // nothing to see, and no sink
        if (views.lse_gradient.elements() > 0) dot -= views.lse_gradient.data<float>()[row];
        sum -= std::exp(double{inputs.sinks.data<float>()[h]} - inputs.lse.data<float>()[row]) * dot;
      }
    }
    views.sinks_gradient.data<float>()[h] = static_cast<float>(sum);
  });
}

// O and lse of one pattern alone.
cpu::AttentionForwardCall pattern_alone(const AttentionProblem& problem, const DilatedMemory& memory,
                                        cpu::AttentionForwardCall call) {
  call.sizes.output_dtype = DType::f32;
  call.output =
      heads_view(TensorView(memory.pattern_output, DType::f32,
                            Shape{problem.batch, problem.seq_q, problem.heads_kv, problem.head_dim}));
  call.lse = {memory.pattern_lse, problem.heads_kv * problem.seq_q, problem.seq_q};
  call.row_sum = {};
  call.resume = false;
  return call;
}

}  // namespace

std::int64_t dilated_workspace_bytes(const AttentionProblem& problem, const DeviceDescription& device,
                                     Pass pass) {
  return DilatedMemory(problem, device, pass, nullptr).bytes;
}

void dilated_forward(const AttentionProblem& problem, const AttentionForward& views, std::byte* workspace,
                     const Stream& stream) {
  const DilatedMemory memory(problem, *stream.device, Pass::forward, workspace);
  // Before its first pattern a row has seen nothing, its sink, or what it resumes from; rows that take no
  // part stay so.
  const TensorView output = sums_of(memory.output, views.output);
  if (!problem.resume) {
    zero(output, stream);
    parallel_for(stream, problem.batch * problem.heads_q, [&](std::int64_t item) {
      const std::int64_t head = item % problem.heads_q;
      std::fill_n(views.lse.data<float>() + views.lse.offset(item / problem.heads_q, head), problem.seq_q,
                  problem.sinks ? views.sinks.data<float>()[head] : -kInfinity);
      if (views.row_sum.elements() == 0) return;
      std::fill_n(views.row_sum.data<double>() + views.row_sum.offset(item / problem.heads_q, head),
                  problem.seq_q, 0.0);
    });
  }
  for_each_part(problem, [&](const Part& part) {
    cpu::attention_forward(part_call(problem, views, output, memory, part, stream), memory.kernels, stream);
  });
  if (memory.output != nullptr) narrow(output, views.output, stream);
}

void dilated_backward(const AttentionProblem& problem, const AttentionBackward& views, std::byte* workspace,
                      const Stream& stream) {
  const DilatedMemory memory(problem, *stream.device, Pass::backward, workspace);
  const TensorView query_gradient = sums_of(memory.query_gradient, views.query_gradient);
  const TensorView key_gradient = sums_of(memory.key_gradient, views.key_gradient);
  const TensorView value_gradient = sums_of(memory.value_gradient, views.value_gradient);
  if (!problem.add_gradients) {
    for (const TensorView& view : {query_gradient, key_gradient, value_gradient}) zero(view, stream);
  }
  for_each_part(problem, [&](const Part& part) {
    cpu::AttentionForwardCall call =
        part_call(problem, views.forward, views.forward.output, memory, part, stream);
    call.sizes.query_gradient_dtype = query_gradient.dtype();
    call.sizes.key_gradient_dtype = key_gradient.dtype();
    if (problem.mask.detach_mixing) {
      // With the weights constant, a pattern's gradient is that of its own softmax: dS <- w P (dP - dO .
      // O_pattern), where w P is made from the merged lse.
      const cpu::AttentionForwardCall alone = pattern_alone(problem, memory, call);
      cpu::attention_forward(alone, memory.kernels, stream);
      call.output = alone.output;
      call.sizes.output_dtype = alone.sizes.output_dtype;
    }
    cpu::attention_backward({.forward = call,
                             .output_gradient = part_heads(problem, views.output_gradient, part),
                             .lse_gradient = part_statistics(problem, views.lse_gradient, part),
                             .query_gradient = part_heads(problem, query_gradient, part),
                             .key_gradient = heads_view(key_gradient),
                             .value_gradient = heads_view(value_gradient),
                             .sinks_gradient = nullptr},
                            memory.kernels, stream);
  });
  if (memory.query_gradient != nullptr) narrow(query_gradient, views.query_gradient, stream);
  if (memory.key_gradient != nullptr) {
    narrow(key_gradient, views.key_gradient, stream);
    narrow(value_gradient, views.value_gradient, stream);
  }
  if (problem.sinks) sinks_backward(problem, views, stream);
}

}  // namespace headroom
