// into <- the merge of two partial results; and the end of an open one. Included by a .cu file (or, for
// tests, by a .cpp after tests/cuda/on_host.h).
#pragma once

#include "attention/cuda/merge.h"
#include "attention/merge.h"
#include "cuda/device_code.h"
#if defined(__CUDACC__)
#include "cuda/launch.h"
#endif

namespace headroom::cuda {

// One warp per row.
static __global__ void merge_kernel(MergeCall call) {
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kWarp;
  if (item >= call.batch * call.rows * call.heads) return;
  const std::int64_t b = item / (call.rows * call.heads);
  const std::int64_t q = item / call.heads % call.rows;
  const std::int64_t head = item % call.heads;
  const auto lse_of = [&](const MergeSide& side) {
    return side.lse + b * side.batch_stride + head * side.head_stride + q * side.row_stride;
  };
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto weights = MergeWeights::of(*lse_of(call.into), *lse_of(call.from));
  __syncwarp();  // before it is written
  if (lane == 0) *lse_of(call.into) = weights.lse;
  float* to = call.into.output.row<float>(b, head, q);
  const float* other = call.from.output.row<float>(b, head, q);
  for (int c = lane; c < call.head_dim; c += kWarp) to[c] = weights.merged(to[c], other[c]);
}

// One warp per token. A lane works out what closes the row of one head, so that no logarithm in f64 is worked
// out 32 times.
static __global__ void close_kernel(CloseCall call) {
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kWarp;
  if (item >= call.batch * call.rows) return;
  const std::int64_t b = item / call.rows;
  const std::int64_t q = item - b * call.rows;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const TypedHeadsView& from = call.partial.output;
  const TypedHeadsView& to = call.output;
  for (std::int64_t first = 0; first < call.heads; first += kWarp) {
    ClosedRow own;
    if (const std::int64_t head = first + lane; head < call.heads) {
      float* lse = call.partial.lse + b * call.partial.batch_stride + head * call.partial.head_stride +
                   q * call.partial.row_stride;
      own = ClosedRow::of(
          *lse, call.row_sum[b * call.batch_stride + head * call.head_stride + q * call.row_stride]);
      *lse = own.lse;
    }
    for (std::int64_t head = first; head < least(first + kWarp, call.heads); ++head) {
      ClosedRow row;
      row.inverse = __shfl_sync(0xFFFFFFFF, own.inverse, static_cast<int>(head - first));
      const std::int64_t source = b * from.batch_stride + q * from.row_stride + head * from.head_stride;
      const std::int64_t target = b * to.batch_stride + q * to.row_stride + head * to.head_stride;
      for (int c = 4 * lane; c < call.head_dim; c += 4 * kWarp) {
        const float4 four = load_four(from.data, from.dtype, source + c, from.aligned);
        store_four(
            to.data, to.dtype, target + c, to.aligned,
            make_float4(row.divided(four.x), row.divided(four.y), row.divided(four.z), row.divided(four.w)));
      }
    }
  }
}

inline void launch_merge(const MergeCall& call, const Stream& stream) {
  launch("merge_kernel", merge_kernel, ceil_div(call.batch * call.rows * call.heads * kWarp, kRowThreads),
         kRowThreads, 0, stream, call);
}

inline void launch_close(const CloseCall& call, const Stream& stream) {
  launch("close_kernel", close_kernel, ceil_div(call.batch * call.rows * kWarp, kRowThreads), kRowThreads, 0,
         stream, call);
}

}  // namespace headroom::cuda
