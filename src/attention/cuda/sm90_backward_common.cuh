// What both backward kernels for Hopper share: the share of keys a block works on, turns, and what runs before and after.
#pragma once

#include "attention/cuda/sm90_common.cuh"
#include "attention/cuda/sm90_tiles.h"
#include "cuda/pipeline.h"

namespace headroom::sm90 {

// A block's share of keys, and the query tiles it passes over for each head of the group.
struct KeyTile {
  int batch;
  int head;  // of keys
  int index;
  int first_query_tile;
  int query_tiles;
  bool none;  // no work is left
};

template <class Shape>
__device__ __forceinline__ KeyTile key_tile(const BackwardCall& call, int index) {
  const TilePlace at = place(call.order, index, call.heads_q / call.group);
  // Intervals of queries rise with the key, so the first and the last key bound them all.
  const int first_key = at.tile * Shape::kKeys;
  const int last_key = min(first_key + Shape::kKeys, call.queries.rows) - 1;
  const int begin = call.queries.of(at.batch, first_key).x / Shape::kQueries;
  const int end = (call.queries.of(at.batch, last_key).y + Shape::kQueries - 1) / Shape::kQueries;
  return {at.batch, at.head, at.tile, begin, max(end - begin, 0), false};
}

template <class Shape, class Body>
__device__ __forceinline__ void for_each_query_tile(const BackwardCall& call, const KeyTile& tile, const Body& body) {
  for (int g = 0; g < call.group; ++g) {
    const int head = tile.head * call.group + g;
    for (int m = tile.first_query_tile + tile.query_tiles - 1; m >= tile.first_query_tile; --m) body(head, m);
  }
}

// The same tiles, for whoever does not treat them all alike.
struct QuerySteps {
  int head;
  int m;
  int left;

  __device__ __forceinline__ QuerySteps(const BackwardCall& call, const KeyTile& tile)
      : head(tile.head * call.group), m(tile.first_query_tile + tile.query_tiles - 1), left(tile.query_tiles * call.group) {}
  __device__ __forceinline__ void advance(const KeyTile& tile) {
    --left;
    if (--m < tile.first_query_tile) {
      m += tile.query_tiles;
      ++head;
    }
  }
};

// A consumer's share of a query tile's dQ: 64 rows of some columns. In memory shares follow each other, each in the order of
// the registers that made it: four sums of every thread, then the next four.
struct QueryShare {
  int columns;
  int first_column;
  int first_row;
};

// ---- turns: who adds to the dQ of a query tile

__device__ __forceinline__ void wait_for_turn(const int* turns, int mine) {
  int turn;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(turn) : "l"(turns) : "memory");
  } while (turn != mine);
}

__device__ __forceinline__ void next_turn(int* turns) {
  asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.s32 [%0], 1;" ::"l"(turns) : "memory");
}

// ---- before and after

struct BeforeCall {
  Rows output;
  Rows output_gradient;
  const float* lse = nullptr;           // [batch, heads, rows]
  const float* lse_gradient = nullptr;  // likewise, or null
  float* lse_log2 = nullptr;            // [batch, heads, padded rows]
  float* delta = nullptr;
  int batch = 0;
  int heads = 0;
  int rows = 0;
  int padded_rows = 0;
  int head_dim = 0;
};

// A warp per row of a head: delta = sum of O dO, less what the log-sum-exp's own gradient adds.
template <class Element>
__global__ void before_backward_kernel(const BeforeCall call) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (index >= static_cast<std::int64_t>(call.batch) * call.heads * call.padded_rows) return;
  const int head = static_cast<int>(index % call.heads);
  const std::int64_t rest = index / call.heads;
  const int row = static_cast<int>(rest % call.padded_rows);
  const int batch = static_cast<int>(rest / call.padded_rows);
  const std::int64_t to = (static_cast<std::int64_t>(batch) * call.heads + head) * call.padded_rows + row;
  float sum = 0;
  if (row < call.rows) {
    const auto row_of = [&](const Rows& rows) {
      return static_cast<const Element*>(rows.data) + batch * rows.batch_stride + row * rows.row_stride +
             head * rows.head_stride;
    };
    const Element* output = row_of(call.output);
    const Element* gradient = row_of(call.output_gradient);
    const int column = lane * 8;
    if (column < call.head_dim) {
      const uint4 a = *reinterpret_cast<const uint4*>(output + column);
      const uint4 b = *reinterpret_cast<const uint4*>(gradient + column);
      const auto* x = reinterpret_cast<const Element*>(&a);
      const auto* y = reinterpret_cast<const Element*>(&b);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = fmaf(static_cast<float>(x[i]), static_cast<float>(y[i]), sum);
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, step);
  if (lane != 0) return;
  float lse = INFINITY;
  if (row < call.rows) {
    const std::int64_t from = (static_cast<std::int64_t>(batch) * call.heads + head) * call.rows + row;
    lse = call.lse[from] == -INFINITY ? INFINITY : call.lse[from] * kLog2e;
    if (call.lse_gradient != nullptr) sum -= call.lse_gradient[from];
  }
  call.lse_log2[to] = lse;
  call.delta[to] = sum;
}

struct AfterCall {
  const float* query_sums = nullptr;
  Rows query_gradient;
  Intervals keys;
  int heads = 0;
  int query_tiles = 0;
  int tile_rows = 0;
  int head_dim = 0;
  float scale = 1;
};

template <class Element, int kColumns>
__device__ __forceinline__ void finish_share(const AfterCall& call, const float* sums_of_share, int first_column, int first_row) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int batch = static_cast<int>(blockIdx.z);
  const int head = static_cast<int>(blockIdx.y);
  float sums[kColumns / 2];
#pragma unroll
  for (int i = 0; i < kColumns / 8; ++i) {
    const float4 piece = reinterpret_cast<const float4*>(sums_of_share)[i * kWarpgroup + thread];
    sums[4 * i] = piece.x;
    sums[4 * i + 1] = piece.y;
    sums[4 * i + 2] = piece.z;
    sums[4 * i + 3] = piece.w;
  }
  const Rows& rows = call.query_gradient;
  Element* to[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + thread / 32 * 16 + thread % 32 / 4 + 8 * r;
    to[r] = row >= call.keys.rows ? nullptr
                                  : static_cast<Element*>(rows.data) + batch * rows.batch_stride + row * rows.row_stride +
                                        head * rows.head_stride + first_column;
  }
  // Where no key is seen nobody has added, and the memory holds anything.
  const int2 seen = call.keys.of(batch, min(static_cast<int>(blockIdx.x + 1) * call.tile_rows, call.keys.rows) - 1);
  const float scale = seen.x < seen.y ? call.scale : 0;
  const float factor[2] = {scale, scale};
  if (scale == 0) {
#pragma unroll
    for (float& sum : sums) sum = 0;
  }
  store_rows<Element, kColumns>(sums, factor, to, call.head_dim - first_column);
}

// dQ from sums in the order of registers to 16-bit rows; a block per query tile of a head.
template <class Shape>
__global__ void __launch_bounds__(2 * kWarpgroup) after_backward_kernel(const AfterCall call) {
  const std::int64_t tile =
      (static_cast<std::int64_t>(blockIdx.z) * call.heads + blockIdx.y) * call.query_tiles + blockIdx.x;
  const float* sums = call.query_sums + tile * (Shape::kQueries * Shape::kHeadDim);
  const int row = static_cast<int>(blockIdx.x) * Shape::kQueries;
  constexpr QueryShare kFirst = Shape::kShares[0];
  constexpr QueryShare kSecond = Shape::kShares[1];
  if (threadIdx.x < kWarpgroup) {
    finish_share<typename Shape::Element, kFirst.columns>(call, sums, kFirst.first_column, row + kFirst.first_row);
  } else {
    finish_share<typename Shape::Element, kSecond.columns>(call, sums + 64 * kFirst.columns, kSecond.first_column,
                                                           row + kSecond.first_row);
  }
}

}  // namespace headroom::sm90
