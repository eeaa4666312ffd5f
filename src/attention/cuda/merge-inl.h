// into <- the merge of two partial results. Included by a .cu file (or, for tests, by a .cpp after
// tests/cuda/on_host.h).
#pragma once

#include "attention/cuda/call.h"
#include "attention/cuda/merge.h"
#include "attention/cuda/steps.h"
#include "attention/merge.h"
#if defined(__CUDACC__)
#include "cuda/launch.h"
#endif

namespace headroom::cuda {

inline constexpr int kMergeThreads = 256;
inline constexpr int kMergeWarp = 32;

struct MergeSide {
  HeadsView output;  // f32
  float* lse = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;

  [[nodiscard]] static MergeSide of(const AttentionPartial& partial) {
    return {heads_view(partial.output), partial.lse.data<float>(), partial.lse.stride(0),
            partial.lse.stride(1), partial.lse.stride(2)};
  }
  __device__ float* lse_of(std::int64_t b, std::int64_t q, std::int64_t head) const {
    return lse + b * batch_stride + head * head_stride + q * row_stride;
  }
  __device__ float* row(std::int64_t b, std::int64_t q, std::int64_t head) const {
    return static_cast<float*>(output.data) + b * output.batch_stride + q * output.row_stride +
           head * output.head_stride;
  }
};

// One warp per row.
static __global__ void merge_kernel(MergeSide into, MergeSide from, std::int64_t rows, std::int64_t heads,
                                    std::int64_t items, int head_dim) {
  const std::int64_t item =
      (static_cast<std::int64_t>(blockIdx.x) * kMergeThreads + threadIdx.x) / kMergeWarp;
  if (item >= items) return;
  const std::int64_t b = item / (rows * heads);
  const std::int64_t q = item / heads % rows;
  const std::int64_t head = item % heads;
  const int lane = static_cast<int>(threadIdx.x) % kMergeWarp;
  float* lse = into.lse_of(b, q, head);
  const auto weights = MergeWeights::of(*lse, *from.lse_of(b, q, head));
  __syncwarp();  // before it is written
  if (lane == 0) *lse = weights.lse;
  float* to = into.row(b, q, head);
  const float* other = from.row(b, q, head);
  for (int c = lane; c < head_dim; c += kMergeWarp) {
    to[c] = weights.merged(to[c], other[c]);
  }
}

inline void launch_merge(const AttentionPartial& into, const AttentionPartial& from, const Stream& stream) {
  const std::int64_t rows = into.output.extent(1);
  const std::int64_t heads = into.output.extent(2);
  const std::int64_t items = into.output.extent(0) * rows * heads;
  launch("merge_kernel", merge_kernel, parts_of(items * kMergeWarp, kMergeThreads), kMergeThreads, 0, stream,
         MergeSide::of(into), MergeSide::of(from), rows, heads, items,
         static_cast<int>(into.output.extent(3)));
}

}  // namespace headroom::cuda
