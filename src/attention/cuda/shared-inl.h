// The launches that all rows share: lists of rows, first and last values, row statistics, dSink. All are
// bound by memory. Included by a .cu file (or, for tests, by a .cpp after tests/cuda/on_host.h).
#pragma once

#include "attention/cuda/shared.h"
#include "attention/dilated_rows.h"
#include "cuda/device_code.h"
#if defined(__CUDACC__)
#include "cuda/launch.h"
#endif

namespace headroom::cuda {

// first, last <- what row q sees; one thread per row
static __global__ void plain_lists_kernel(AttentionCall call) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i >= call.batch * call.seq_q) return;
  const Range seen = plain_interval(call.rule.of(i / call.seq_q, 0, 0), i % call.seq_q);
  call.lists.first[i] = seen.begin;
  call.lists.last[i] = seen.end;
}

// rows, first, last, counts <- the rows that take part, and key_rows where they are others; one block per
// sequence and head, document after document
static __global__ void dilated_lists_kernel(AttentionCall call) {
  const RowLists& lists = call.lists;
  const std::int64_t list = blockIdx.x;
  const MaskView mask = call.rule.of(list / call.heads_q, list % call.heads_q, call.pattern);
  std::int64_t count = 0;
  std::int64_t key_count = 0;
  for (std::int64_t n = 0; n < DilatedDocument::count(mask); ++n) {
    const DilatedDocument document = DilatedDocument::of(mask, n);
    // Whatever document_starts hold, the lists hold no more than there is room for.
    KeyRange queries = document.members(mask.query_start, mask.seq_q);
    queries.end = least(queries.end, queries.begin + lists.capacity - count);
    KeyRange keys = document.members(mask.key_start, mask.seq_k);
    keys.end = least(keys.end, keys.begin + lists.key_capacity - key_count);
    const auto index = [&](std::int64_t member) {
      return static_cast<std::int32_t>(key_count + least(most(member, keys.begin), keys.end) - keys.begin);
    };
    for (std::int64_t i = threadIdx.x; i < queries.size(); i += kRowThreads) {
      const std::int64_t at = list * lists.capacity + count + i;
      const std::int64_t member = queries.begin + i;
      const KeyRange seen = document.seen(mask, member);
      lists.rows[at] = static_cast<std::int32_t>(document.position(member) - mask.query_start);
      lists.first[at] = index(seen.begin);
      lists.last[at] = index(seen.end);
    }
    for (std::int64_t i = threadIdx.x; lists.key_rows != lists.rows && i < keys.size(); i += kRowThreads) {
      lists.key_rows[list * lists.key_capacity + key_count + i] =
          static_cast<std::int32_t>(document.position(keys.begin + i) - mask.key_start);
    }
    count += queries.size();
    key_count += keys.size();
  }
  if (threadIdx.x == 0) lists.counts[list] = static_cast<std::int32_t>(count);
  if (threadIdx.x == 0) lists.key_counts[list] = static_cast<std::int32_t>(key_count);
}

// seen_by <- the queries that may see a tile of keys; one thread per tile
static __global__ void seen_by_kernel(AttentionCall call, std::int64_t lists) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i >= lists * call.lists.key_tiles) return;
  const std::int64_t list = i / call.lists.key_tiles;
  const auto begin = static_cast<std::int32_t>(i % call.lists.key_tiles * kTileKeys);
  const std::int32_t rows = call.lists.counts == nullptr ? call.seq_q : call.lists.counts[list];
  const std::int32_t keys = call.lists.key_counts == nullptr ? call.seq_k : call.lists.key_counts[list];
  call.lists.seen_by[i] = rows_that_see(call.lists.first + list * call.lists.capacity,
                                        call.lists.last + list * call.lists.capacity, rows,
                                        {begin, least(begin + kTileKeys, keys)});
}

// Where item (b, row, head) of a [batch, rows, heads]-shaped walk lies.
__device__ __forceinline__ std::int64_t row_offset(const TypedHeadsView& view, std::int64_t item,
                                                   std::int64_t rows, std::int64_t heads) {
  return item / (rows * heads) * view.batch_stride + item / heads % rows * view.row_stride +
         item % heads * view.head_stride;
}

// dst <- 0; one warp per row
static __global__ void zero_kernel(AttentionCall call, TypedHeadsView to, std::int64_t rows,
                                   std::int64_t heads) {
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kWarp;
  if (item >= call.batch * rows * heads) return;
  const std::int64_t at = row_offset(to, item, rows, heads);
  for (int c = static_cast<int>(threadIdx.x) % kWarp; c < call.head_dim; c += kWarp) {
    store_element(to.data, to.dtype, at + c, 0);
  }
}

// the counters of a launch <- 0; one thread per word
static __global__ void zero_counters_kernel(AttentionCall call, std::int64_t words) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i == 0) *call.next_share = 0;
  if (i < words) call.turns[i] = 0;
}

// to <- the sum of the parts, and of what is there; one warp per row
static __global__ void narrow_kernel(AttentionCall call, TypedHeadsView to, TypedHeadsView from,
                                     std::int64_t rows, std::int64_t heads, std::int64_t parts, bool add) {
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kWarp;
  if (item >= call.batch * rows * heads) return;
  const std::int64_t at = row_offset(to, item, rows, heads);
  const std::int64_t source = row_offset(from, item, rows, heads);
  for (int c = static_cast<int>(threadIdx.x) % kWarp; c < call.head_dim; c += kWarp) {
    float sum = add ? load_element(to.data, to.dtype, at + c) : 0;
#pragma unroll 4
    for (std::int64_t part = 0; part < parts; ++part) {
      sum += load_element(from.data, from.dtype, source + part * call.batch * from.batch_stride + c);
    }
    store_element(to.data, to.dtype, at + c, sum);
  }
}

// lse <- sink or -inf, in a row that is not open; one thread per row
static __global__ void start_lse_kernel(AttentionCall call) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (i >= call.batch * call.heads_q * call.seq_q) return;
  call.lse[i] = call.sinks == nullptr ? -kInfinity : call.sinks[i / call.seq_q % call.heads_q];
  if (call.row_sum != nullptr) call.row_sum[i] = 0;
}

// row_shift <- log2(e) lse; row_dot <- dO . O - dLSE; one warp per row
static __global__ void row_statistics_kernel(AttentionCall call) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kWarp;
  if (i >= call.batch * call.heads_q * call.seq_q) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t b = i / (call.heads_q * call.seq_q);
  const std::int64_t head = i / call.seq_q % call.heads_q;
  const std::int64_t q = i % call.seq_q;
  const TypedHeadsView& o = call.output;
  const TypedHeadsView& gradient = call.output_gradient;
  const std::int64_t at = b * o.batch_stride + q * o.row_stride + head * o.head_stride;
  const std::int64_t from = b * gradient.batch_stride + q * gradient.row_stride + head * gradient.head_stride;
  float sum = 0;
  for (int c = lane; c < call.head_dim; c += kWarp) {
    sum += load_element(o.data, o.dtype, at + c) * load_element(gradient.data, gradient.dtype, from + c);
  }
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (lane != 0) return;
  const float lse = call.lse[i];
  call.row_shift[i] = lse == -kInfinity ? kInfinity : lse * kLog2E;
  call.row_dot[i] = sum - (call.lse_gradient == nullptr ? 0.0F : call.lse_gradient[i]);
}

// dSink <- -sum over rows of exp(sink - lse) row_dot, in a fixed order; one block per head
static __global__ void sinks_gradient_kernel(AttentionCall call) {
#if defined(__CUDACC__)
  extern __shared__ float4 shared_memory[];
#endif
  auto* sums = reinterpret_cast<double*>(shared_memory);
  const std::int64_t head = blockIdx.x;
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < call.batch * call.seq_q; i += kRowThreads) {
    const std::int64_t row = call.statistics(i / call.seq_q, head) + i % call.seq_q;
    const float lse = call.lse[row];
    if (lse == -kInfinity) continue;  // nothing to see, and no sink
    sum -= static_cast<double>(expf(call.sinks[head] - lse)) * static_cast<double>(call.row_dot[row]);
  }
  sums[threadIdx.x] = sum;
  for (unsigned half = kRowThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) call.sinks_gradient[head] = static_cast<float>(sums[0]);
}

inline void launch_lists(const AttentionCall& call, const Stream& stream) {
  if (call.lists.rows == nullptr) {
    launch("plain_lists_kernel", plain_lists_kernel, ceil_div(call.batch * call.seq_q, kRowThreads),
           kRowThreads, 0, stream, call);
  } else {
    launch("dilated_lists_kernel", dilated_lists_kernel, call.batch * call.heads_q, kRowThreads, 0, stream,
           call);
  }
}

inline void launch_seen_by(const AttentionCall& call, const Stream& stream) {
  const std::int64_t lists = call.batch * (call.lists.per_head ? call.heads_q : 1);
  launch("seen_by_kernel", seen_by_kernel, ceil_div(lists * call.lists.key_tiles, kRowThreads), kRowThreads,
         0, stream, call, lists);
}

inline std::int64_t blocks_of_rows(const AttentionCall& call, std::int64_t rows, std::int64_t heads) {
  return ceil_div(call.batch * rows * heads * kWarp, kRowThreads);
}

inline void launch_zero(const AttentionCall& call, const TypedHeadsView& to, std::int64_t rows,
                        std::int64_t heads, const Stream& stream) {
  launch("zero_kernel", zero_kernel, blocks_of_rows(call, rows, heads), kRowThreads, 0, stream, call, to,
         rows, heads);
}

inline void launch_zero_counters(const AttentionCall& call, const Stream& stream) {
  const std::int64_t words = call.turns == nullptr ? 0 : call.batch * call.heads_q * call.turns_per_head;
  launch("zero_counters_kernel", zero_counters_kernel, ceil_div(most<std::int64_t>(words, 1), kRowThreads),
         kRowThreads, 0, stream, call, words);
}

inline void launch_narrow(const AttentionCall& call, const TypedHeadsView& to, const TypedHeadsView& from,
                          std::int64_t rows, std::int64_t heads, std::int64_t parts, bool add,
                          const Stream& stream) {
  launch("narrow_kernel", narrow_kernel, blocks_of_rows(call, rows, heads), kRowThreads, 0, stream, call, to,
         from, rows, heads, parts, add);
}

inline void launch_start_rows(const AttentionCall& call, const Stream& stream) {
  launch_zero(call, call.output, call.seq_q, call.heads_q, stream);
  launch("start_lse_kernel", start_lse_kernel, ceil_div(call.batch * call.heads_q * call.seq_q, kRowThreads),
         kRowThreads, 0, stream, call);
}

inline void launch_row_statistics(const AttentionCall& call, const Stream& stream) {
  launch("row_statistics_kernel", row_statistics_kernel, blocks_of_rows(call, call.seq_q, call.heads_q),
         kRowThreads, 0, stream, call);
}

inline void launch_sinks_gradient(const AttentionCall& call, const Stream& stream) {
  launch("sinks_gradient_kernel", sinks_gradient_kernel, call.heads_q, kRowThreads,
         kRowThreads * static_cast<std::int64_t>(sizeof(double)), stream, call);
}

inline constexpr SharedLaunches kSharedLaunches{.write_lists = launch_lists,
                                                .write_seen_by = launch_seen_by,
                                                .start_rows = launch_start_rows,
                                                .row_statistics = launch_row_statistics,
                                                .sinks_gradient = launch_sinks_gradient,
                                                .zero_counters = launch_zero_counters,
                                                .zero = launch_zero,
                                                .narrow = launch_narrow};

}  // namespace headroom::cuda
