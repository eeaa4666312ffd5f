// dK and dV on Hopper for heads of 192 and 256, whose sums fill the registers of two warpgroups with 64 keys
// alone. One consumer makes probabilities and holds dV, the other makes the gradients of scores and holds dK;
// probabilities pass from one to the other through shared memory. While one makes them, the tensor cores
// work for the other; and the product that adds to dV (dK) for one query tile is followed by the next tile's
// scores (gradients) without a wait, so that a query tile is held for one step only. dQ has a kernel of its
// own (backward_queries.cuh).
#pragma once

#include "attention/cuda/sm90/backward_common.cuh"

namespace headroom::cuda::sm90 {

template <class ElementType, int kHead, bool kOfGeneral>
struct WideShape {
  using Element = ElementType;
  static constexpr bool kGeneral = kOfGeneral;
  static constexpr int kHeadDim = kHead;
  static constexpr int kColumns = pad_columns(kHead);
  static constexpr int kConsumers = 2;
  static constexpr int kKeys = 64;
  static constexpr int kQueries = 64;
  static constexpr int kStages = 2;
  static constexpr int kThreads = kWarpgroup * (kConsumers + 1);
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kProducerRegisters = 40;
};

template <class Shape>
struct alignas(1024) WideShared {
  using Element = typename Shape::Element;
  alignas(1024) Element key[Shape::kKeys * Shape::kColumns];
  alignas(1024) Element value[Shape::kKeys * Shape::kColumns];
  alignas(1024) Element query[Shape::kStages][Shape::kQueries * Shape::kColumns];
  alignas(1024) Element output_gradient[Shape::kStages][Shape::kQueries * Shape::kColumns];
  alignas(1024) Element probability[2][Shape::kKeys * Shape::kQueries];  // a key per row
  alignas(16) float lse[Shape::kStages][Shape::kQueries];
  alignas(16) float delta[Shape::kStages][Shape::kQueries];
  Ring<1> key_ring;
  Ring<Shape::kStages> query_ring;
  Ring<Shape::kStages> gradient_ring;
  Ring<2> probability_ring;
  Ring<2> tile_ring;
  KeyTile tile[2];
};

// ---- consumers

// D = A B^T over the head's columns: 64 keys with 64 queries.
template <class Shape>
__device__ __forceinline__ void multiply_wide_rows(float (&scores)[32], const typename Shape::Element* a_rows,
                                                   const typename Shape::Element* b_rows) {
  const auto a = ptx::MatrixDescriptor::of(a_rows);
  const auto b = ptx::MatrixDescriptor::of(b_rows);
#pragma unroll
  for (int k = 0; k < Shape::kHeadDim; k += 16) {
    const int at = k / kTileColumns * kTileColumns * 64 + k % kTileColumns;
    ptx::wgmma<typename Shape::Element, 64, ptx::Major::inner, ptx::Major::inner>(scores, a + at, b + at,
                                                                                  k != 0);
  }
}

// Sums of 64 keys += A [64 keys x 64 queries] B [64 queries x head_dim], A in registers.
template <class Shape>
__device__ __forceinline__ void multiply_wide_queries(float (&sums)[Shape::kHeadDim / 2],
                                                      const std::uint32_t (&a)[16],
                                                      const typename Shape::Element* b_rows) {
  const auto b = ptx::MatrixDescriptor::of(b_rows, 64 * kTileColumns * 2);
#pragma unroll
  for (int k = 0; k < 64; k += 16) {
    ptx::wgmma<typename Shape::Element, Shape::kHeadDim, ptx::Major::outer>(sums, a + k / 4,
                                                                            b + k * kTileColumns, true);
  }
}

// Where a lane's row of an 8 x 8 tile of 64 keys by 64 queries lies: rows are 128 bytes, their 16-byte pieces
// swapped by the row's last bits. Tiles of 16 queries are 2 pieces apart.
struct MatrixRow {
  std::uint32_t row_offset;
  int row_bits;
  int piece;

  __device__ __forceinline__ MatrixRow() {
    const int row = static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 + static_cast<int>(threadIdx.x) % 16;
    row_offset = row * 128;
    row_bits = row & 7;
    piece = static_cast<int>(threadIdx.x) % 32 / 16;
  }
  __device__ __forceinline__ std::uint32_t address(const void* tile, int query) const {
    return ptx::shared_address(tile) + row_offset + (((query / 8 + piece) ^ row_bits) << 4);
  }
};

template <class Shape>
__device__ void consume_values(const BackwardCall& call, WideShared<Shape>& shared) {
  using Element = typename Shape::Element;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int row_in_block = thread / 32 * 16 + thread % 32 / 4;
  const int first_column = thread % 4 * 2;
  const MatrixRow matrix;
  const float scale_log2 = (Shape::kGeneral && call.softcap > 0 ? call.softcap : call.scale) * kLog2E;
  RingPosition<1> key_at;
  RingPosition<2> pass_at;  // of probabilities
  RingPosition<2> tile_at;
  RingPosition<Shape::kStages> at;
  RingPosition<Shape::kStages> before;  // the query tile whose product is on its way

  while (true) {
    shared.tile_ring.wait_full(tile_at);
    const KeyTile& tile = shared.tile[tile_at.stage()];
    if (tile.none) break;
    float sums[Shape::kHeadDim / 2] = {};
    if (tile.query_tiles > 0) {
      const SeenBy seen_by = Shape::kGeneral ? SeenBy{} : SeenBy(call, tile, Shape::kKeys, row_in_block);
      const auto step = [&](auto is_first, int head, int visit) {
        constexpr bool kFirst = is_first.value;
        float scores[32];
        shared.query_ring.wait_full(at);
        ptx::wgmma_fence();
        multiply_wide_rows<Shape>(scores, shared.key, shared.query[at.stage()]);
        ptx::wgmma_commit();
        if constexpr (!kFirst) {
          ptx::wgmma_wait<1>();
          ptx::wgmma_pin(sums);
          shared.gradient_ring.release_warp(before);
          before.advance();
        }
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(scores);
        shape_scores<Shape>(scores, call, tile, head, visit, seen_by, row_in_block, first_column);
        // P for dV; for the other consumer too, with a softcap times its slope, 1 - tanh^2.
        const float* lse = shared.lse[at.stage()] + first_column;
        std::uint32_t probabilities[16];
        shared.probability_ring.wait_empty(pass_at);
#pragma unroll
        for (int k = 0; k < 64; k += 16) {
          std::uint32_t passed[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const int i = k / 2 + 2 * j;
            const float2 column = *reinterpret_cast<const float2*>(lse + i / 4 * 8);
            const float p = ptx::exp2_approximate(fmaf(scores[i], scale_log2, -column.x));
            const float q = ptx::exp2_approximate(fmaf(scores[i + 1], scale_log2, -column.y));
            probabilities[i / 2] = ptx::pack<Element>(p, q);
            passed[j] = probabilities[i / 2];
            if (Shape::kGeneral && call.softcap > 0) {
              passed[j] = ptx::pack<Element>(p > 0 ? p * (1 - scores[i] * scores[i]) : 0,
                                             q > 0 ? q * (1 - scores[i + 1] * scores[i + 1]) : 0);
            }
          }
          ptx::store_matrix(matrix.address(shared.probability[pass_at.stage()], k), passed[0], passed[1],
                            passed[2], passed[3]);
        }
        shared.query_ring.release_warp(at);
        shared.probability_ring.publish_warp(pass_at);
        pass_at.advance();
        shared.gradient_ring.wait_full(at);
        ptx::wgmma_fence();
        multiply_wide_queries<Shape>(sums, probabilities, shared.output_gradient[at.stage()]);
        ptx::wgmma_commit();
        at.advance();
      };
      shared.key_ring.wait_full(key_at);
      QuerySteps<Shape> steps(call, tile);
      step(std::true_type{}, steps.head, steps.visit);
      for (steps.advance(call, tile); steps.more(); steps.advance(call, tile))
        step(std::false_type{}, steps.head, steps.visit);
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(sums);
      shared.gradient_ring.release_warp(before);
      before.advance();
      shared.key_ring.release_warp(key_at);
      key_at.advance();
    }
    store_key_rows<Shape>(call, tile, call.value_gradient, row_in_block, 1, sums);
    shared.tile_ring.release_warp(tile_at);
    tile_at.advance();
  }
}

template <class Shape>
__device__ void consume_keys(const BackwardCall& call, WideShared<Shape>& shared) {
  using Element = typename Shape::Element;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int lane = thread % 32;
  const int row_in_block = thread / 32 * 16 + lane / 4;
  const int first_column = thread % 4 * 2;
  const MatrixRow matrix;
  RingPosition<1> key_at;
  RingPosition<2> pass_at;
  RingPosition<2> tile_at;
  RingPosition<Shape::kStages> at;
  RingPosition<Shape::kStages> before;

  while (true) {
    shared.tile_ring.wait_full(tile_at);
    const KeyTile& tile = shared.tile[tile_at.stage()];
    if (tile.none) break;
    float sums[Shape::kHeadDim / 2] = {};
    if (tile.query_tiles > 0) {
      const auto step = [&](auto is_first) {
        constexpr bool kFirst = is_first.value;
        float gradients[32];
        shared.gradient_ring.wait_full(at);
        ptx::wgmma_fence();
        multiply_wide_rows<Shape>(gradients, shared.value, shared.output_gradient[at.stage()]);
        ptx::wgmma_commit();
        if constexpr (!kFirst) {
          ptx::wgmma_wait<1>();
          ptx::wgmma_pin(sums);
          shared.query_ring.release_warp(before);
          before.advance();
        }
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(gradients);
        const float* delta = shared.delta[at.stage()] + first_column;
        shared.query_ring.wait_full(at);
        shared.probability_ring.wait_full(pass_at);
#pragma unroll
        for (int k = 0; k < 64; k += 16) {
          std::uint32_t pairs[4];
          ptx::load_matrix(matrix.address(shared.probability[pass_at.stage()], k), pairs);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const int column = k + j / 2 * 8;
            const int i = k / 2 + 2 * j;
            const float2 shift = *reinterpret_cast<const float2*>(delta + column);
            const float2 p = ptx::unpack<Element>(pairs[j]);
            gradients[i] = p.x * (gradients[i] - shift.x);
            gradients[i + 1] = p.y * (gradients[i + 1] - shift.y);
          }
        }
        shared.probability_ring.release_warp(pass_at);
        pass_at.advance();
        shared.gradient_ring.release_warp(at);
        std::uint32_t score_gradients[16];
#pragma unroll
        for (int i = 0; i < 16; ++i)
          score_gradients[i] = ptx::pack<Element>(gradients[2 * i], gradients[2 * i + 1]);
        ptx::wgmma_fence();
        multiply_wide_queries<Shape>(sums, score_gradients, shared.query[at.stage()]);
        ptx::wgmma_commit();
        at.advance();
      };
      shared.key_ring.wait_full(key_at);
      QuerySteps<Shape> steps(call, tile);
      step(std::true_type{});
      for (steps.advance(call, tile); steps.more(); steps.advance(call, tile)) step(std::false_type{});
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(sums);
      shared.query_ring.release_warp(before);
      before.advance();
      shared.key_ring.release_warp(key_at);
      key_at.advance();
    }
    store_key_rows<Shape>(call, tile, call.key_gradient, row_in_block, call.scale, sums);
    shared.tile_ring.release_warp(tile_at);
    tile_at.advance();
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    wide_backward_kernel(const __grid_constant__ BackwardCall call) {
  extern __shared__ std::uint8_t raw[];
  auto& shared = *reinterpret_cast<WideShared<Shape>*>(raw);
  const int tiles = call.order.tiles_per_head * call.order.heads;
  if (threadIdx.x == 0) {
    constexpr std::uint32_t kWarps = Shape::kConsumers * kWarpgroup / 32;
    shared.key_ring.init(1, kWarps);
    shared.query_ring.init(1, kWarps);
    shared.gradient_ring.init(1, kWarps);
    shared.probability_ring.init(kWarpgroup / 32, kWarpgroup / 32);
    shared.tile_ring.init(1, kWarps);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    ptx::give_registers<Shape::kProducerRegisters>();
    if (threadIdx.x == 0) load_tiles<Shape>(call, shared, tiles);
  } else {
    ptx::take_registers<Shape::kConsumerRegisters>();
    if (threadIdx.x < 2 * kWarpgroup) {
      consume_values<Shape>(call, shared);
    } else {
      consume_keys<Shape>(call, shared);
    }
  }
}

}  // namespace headroom::cuda::sm90
