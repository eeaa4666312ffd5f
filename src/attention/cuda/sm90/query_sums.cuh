// dQ summed in memory by blocks that keep keys: whose turn it is to add, and rows from the sums.
#pragma once

#include "attention/cuda/sm90/backward_common.cuh"
#include "cuda/ptx/global.h"

namespace headroom::cuda::sm90 {

// ---- turns: who adds to the dQ of a query tile

__device__ __forceinline__ void wait_for_turn(const int* turns, int mine) {
  while (ptx::load_acquire(turns) != mine) {
  }
}

// Which turn this key tile has with a query tile: in the order of keys, from the first that the query tile
// sees, or of those that it visits.
template <class Shape>
__device__ __forceinline__ int turn_of(const BackwardCall& call, const KeyTile& tile, int head, int visit) {
  if constexpr (Shape::kGeneral) {
    if (call.visits.counts != nullptr) return visit % call.visits.capacity;
  }
  return tile.index - call.seen.of(tile.batch, head, visit * Shape::kQueries).begin / Shape::kKeys;
}

// ---- after

// The keys between the first that a tile's first query sees and the last that its last one sees; with block
// lists, any range that is empty where none is visited.
template <class Shape>
__device__ __forceinline__ Range visited_keys(const AfterCall& call, int batch, int head, int m, int count) {
  if constexpr (Shape::kGeneral) {
    if (call.visits.counts != nullptr) {
      return Range{0, call.visits.counts[call.visits.tile(batch * call.heads + head, m)]};
    }
  }
  return Range{call.seen.of(batch, head, m * Shape::kQueries).begin,
               call.seen.of(batch, head, min((m + 1) * Shape::kQueries, count) - 1).end};
}

// dQ from sums to rows; a block per query tile of a head, a warpgroup for 64 queries. Their sums are in the
// order of the registers that made them: four of every thread, then the next four.
template <class Shape>
__global__ void __launch_bounds__(2 * Shape::kQueries, 1) after_backward_kernel(const AfterCall call) {
  ptx::let_next_kernel_begin();
  ptx::wait_for_kernels_before();
  const int m = static_cast<int>(blockIdx.x % call.query_tiles);
  const int rest = static_cast<int>(blockIdx.x / call.query_tiles);
  const int index = rest % (call.heads / call.group * call.group_heads);
  const int batch = rest / (call.heads / call.group * call.group_heads);
  const int head = index / call.group_heads * call.group + call.group_begin + index % call.group_heads;
  const int count = call.queries.count_of(batch, head);
  if (m * Shape::kQueries >= count) return;
  const std::int64_t tile = (static_cast<std::int64_t>(batch) * call.heads + head) * call.query_tiles + m;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int first_query = static_cast<int>(threadIdx.x) / kWarpgroup * 64;
  const auto* from = reinterpret_cast<const float4*>(
      call.query_sums + (tile * Shape::kQueries + first_query) * Shape::kHeadDim);
  // Where no key is seen nobody has added, and the memory holds anything.
  const bool added = call.sums_are_open || !visited_keys<Shape>(call, batch, head, m, count).empty();
  if (!added && call.rows == Write::added) return;
  alignas(16) float sums[Shape::kHeadDim / 2];
#pragma unroll
  for (int i = 0; i < Shape::kHeadDim / 8; ++i) {
    reinterpret_cast<float4*>(sums)[i] = added ? from[i * kWarpgroup + thread] : make_float4(0, 0, 0, 0);
  }
  write_rows<typename Shape::Element, Shape::kHeadDim>(
      call.query_gradient, call.rows, batch, head,
      RowEnds::of(call.queries, batch, head, m * Shape::kQueries, count - m * Shape::kQueries,
                  row_of_thread(first_query), call.scale),
      sums, call.head_dim);
}

}  // namespace headroom::cuda::sm90
