// dK and dV on Hopper for heads of 192 and 256, whose sums fill the registers of two warpgroups with 64 keys
// alone. One consumer makes probabilities and holds dV, the other makes the gradients of scores and holds dK;
// probabilities pass from one to the other through shared memory. While one makes them, the tensor cores
// work for the other; and the product that adds to dV (dK) for one query tile is followed by the next tile's
// scores (gradients) without a wait, so that a query tile is held for one step only. dQ has a kernel of its
// own (backward_queries.cuh). P and dS are made, and multiplied, in two halves of the queries: while one half
// is multiplied the other is made.
#pragma once

#include "attention/cuda/sm90/backward_common.cuh"

namespace headroom::cuda::sm90 {

template <class ElementType, int kHead, bool kOfGeneral>
struct WideShape : KernelShape<ElementType, kHead, kOfGeneral> {
  static constexpr const char* kName = "wide_backward_kernel";
  static constexpr int kKeys = 64;
  static constexpr BackwardTile kTile = head_tiles(kHead, kOfGeneral).backward;
  static_assert(kTile.keys == kKeys);
  static constexpr int kQueries = kTile.queries;
  static constexpr int kStages = 2;
};

// Probabilities pass to the other consumer in halves of a query tile. Shared memory holds four halves.
inline constexpr int kPassedHalves = 4;

template <class Shape>
struct alignas(1024) WideShared {
  using Element = typename Shape::Element;
  alignas(1024) Element key[Shape::kKeys * Shape::kColumns];
  alignas(1024) Element value[Shape::kKeys * Shape::kColumns];
  alignas(1024) Element query[Shape::kStages][Shape::kQueries * Shape::kColumns];
  alignas(1024) Element output_gradient[Shape::kStages][Shape::kQueries * Shape::kColumns];
  // Of half a query tile, as a consumer's threads hold them.
  uint4 probability[kPassedHalves][Shape::kQueries / 32][kWarpgroup];
  alignas(16) float lse[Shape::kStages][Shape::kQueries];
  alignas(16) float minus_delta[Shape::kStages][Shape::kQueries];
  Ring<1> key_ring;
  Ring<Shape::kStages> query_ring;
  Ring<Shape::kStages> gradient_ring;
  Ring<kPassedHalves> probability_ring;
  Tiles<KeyTile> tiles;

  __device__ __forceinline__ void init() {
    init_rings(1, Shape::kConsumerWarps, key_ring, query_ring, gradient_ring);
    probability_ring.init(kWarpgroup / 32, kWarpgroup / 32);
    tiles.init(Shape::kConsumerWarps + 1);
  }
};

// ---- consumers

// P of 64 keys and half a query tile, for dV; and to shared memory for the other consumer, whose threads hold
// what those of this one hold; there with a softcap times its slope, 1 - tanh^2.
template <class Shape, int kHalf>
__device__ __forceinline__ void make_wide_probabilities(std::uint32_t (&probabilities)[Shape::kQueries / 4],
                                                        WideShared<Shape>& shared,
                                                        RingPosition<kPassedHalves>& pass_at,
                                                        const float (&scores)[Shape::kQueries / 2],
                                                        const Columns<Shape::kQueries>& lse, float scale_log2,
                                                        bool capped) {
  using Element = typename Shape::Element;
  shared.probability_ring.wait_empty(pass_at);
#pragma unroll
  for (int k = 0; k < Shape::kQueries / 32; ++k) {
    std::uint32_t four[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = kHalf * Shape::kQueries / 4 + 8 * k + 2 * j;
      const float p = ptx::exp2_approximate(fmaf(scores[i], scale_log2, -lse.of(i)));
      const float q = ptx::exp2_approximate(fmaf(scores[i + 1], scale_log2, -lse.of(i + 1)));
      probabilities[i / 2] = ptx::pack<Element>(p, q);
      four[j] = probabilities[i / 2];
      if (capped) {
        four[j] = ptx::pack<Element>(p > 0 ? p * (1 - scores[i] * scores[i]) : 0,
                                     q > 0 ? q * (1 - scores[i + 1] * scores[i + 1]) : 0);
      }
    }
    shared.probability[pass_at.stage()][k][threadIdx.x % kWarpgroup] =
        make_uint4(four[0], four[1], four[2], four[3]);
  }
  shared.probability_ring.publish_warp(pass_at);
  pass_at.advance();
}

// dS = P (dP - delta) of half a query tile.
template <class Shape, int kHalf>
__device__ __forceinline__ void make_wide_score_gradients(
    std::uint32_t (&score_gradients)[Shape::kQueries / 4], const float (&gradients)[Shape::kQueries / 2],
    WideShared<Shape>& shared, RingPosition<kPassedHalves>& pass_at,
    const Columns<Shape::kQueries>& minus_delta) {
  using Element = typename Shape::Element;
  shared.probability_ring.wait_full(pass_at);
#pragma unroll
  for (int k = 0; k < Shape::kQueries / 32; ++k) {
    const uint4 four = shared.probability[pass_at.stage()][k][threadIdx.x % kWarpgroup];
    const std::uint32_t pairs[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = kHalf * Shape::kQueries / 4 + 8 * k + 2 * j;
      const float2 p = ptx::unpack<Element>(pairs[j]);
      score_gradients[i / 2] = ptx::pack<Element>(p.x * (gradients[i] + minus_delta.of(i)),
                                                  p.y * (gradients[i + 1] + minus_delta.of(i + 1)));
    }
  }
  shared.probability_ring.pass_warp(pass_at);
}

template <class Shape>
__device__ void consume_values(const BackwardCall& call, WideShared<Shape>& shared) {
  const int row_in_block = row_of_thread();
  const int first_column = column_of_thread();
  const float scale_log2 = (Shape::kGeneral && call.softcap > 0 ? call.softcap : call.scale) * kLog2E;
  RingPosition<1> key_at;
  RingPosition<kPassedHalves> pass_at;  // of probabilities
  RingPosition<Shape::kStages> at;
  RingPosition<Shape::kStages> before;  // the query tile whose product is on its way

  for (TilePosition tile_at; shared.tiles.wait(tile_at); shared.tiles.pass_warp(tile_at)) {
    const KeyTile& tile = shared.tiles[tile_at];
    float sums[Shape::kHeadDim / 2] = {};
    if (tile.query_tiles > 0) {
      const SeenBy seen_by = Shape::kGeneral ? SeenBy{} : SeenBy(call, tile, Shape::kKeys, row_in_block);
      shared.key_ring.wait_full(key_at);
      for_each_query_tile<Shape>(call, tile, [&](int head, int visit) {
        const bool is_first = before.step == at.step;
        float scores[Shape::kQueries / 2];
        Columns<Shape::kQueries> lse;
        shared.query_ring.wait_full(at);
        lse.read(shared.lse[at.stage()] + first_column);
        multiply_rows<Shape, Shape::kKeys>(scores, shared.key, shared.query[at.stage()]);  // S^T = K Q^T
        ptx::wgmma_wait<1>(sums);
        if (!is_first) shared.gradient_ring.pass_warp(before);
        ptx::wgmma_wait<0>(scores);
        shape_scores<Shape>(scores, call, tile, head, visit, seen_by, row_in_block, first_column);
        std::uint32_t probabilities[Shape::kQueries / 4];
        const bool capped = Shape::kGeneral && call.softcap > 0;
        make_wide_probabilities<Shape, 0>(probabilities, shared, pass_at, scores, lse, scale_log2, capped);
        shared.gradient_ring.wait_full(at);
        const auto* output_gradient = shared.output_gradient[at.stage()];
        multiply_columns<Shape, 0, 2>(sums, probabilities, output_gradient);  // dV += P^T dO
        make_wide_probabilities<Shape, 1>(probabilities, shared, pass_at, scores, lse, scale_log2, capped);
        shared.query_ring.release_warp(at);
        multiply_columns<Shape, 1, 2>(sums, probabilities, output_gradient);
        at.advance();
      });
      ptx::wgmma_wait<0>(sums);
      shared.gradient_ring.pass_warp(before);
      shared.key_ring.pass_warp(key_at);
    }
    store_key_rows<Shape>(call, tile, call.value_gradient, row_in_block, 1, sums);
  }
}

template <class Shape>
__device__ void consume_keys(const BackwardCall& call, WideShared<Shape>& shared) {
  const int row_in_block = row_of_thread();
  const int first_column = column_of_thread();
  RingPosition<1> key_at;
  RingPosition<kPassedHalves> pass_at;
  RingPosition<Shape::kStages> at;
  RingPosition<Shape::kStages> before;

  for (TilePosition tile_at; shared.tiles.wait(tile_at); shared.tiles.pass_warp(tile_at)) {
    const KeyTile& tile = shared.tiles[tile_at];
    float sums[Shape::kHeadDim / 2] = {};
    if (tile.query_tiles > 0) {
      shared.key_ring.wait_full(key_at);
      for_each_query_tile<Shape>(call, tile, [&](int, int) {
        const bool is_first = before.step == at.step;
        float gradients[Shape::kQueries / 2];
        Columns<Shape::kQueries> minus_delta;
        shared.gradient_ring.wait_full(at);
        shared.query_ring.wait_full(at);
        minus_delta.read(shared.minus_delta[at.stage()] + first_column);
        multiply_rows<Shape, Shape::kKeys>(gradients, shared.value, shared.output_gradient[at.stage()]);
        ptx::wgmma_wait<1>(sums);
        if (!is_first) shared.query_ring.pass_warp(before);
        ptx::wgmma_wait<0>(gradients);
        std::uint32_t score_gradients[Shape::kQueries / 4];
        make_wide_score_gradients<Shape, 0>(score_gradients, gradients, shared, pass_at, minus_delta);
        multiply_columns<Shape, 0, 2>(sums, score_gradients, shared.query[at.stage()]);  // dK += dS^T Q
        make_wide_score_gradients<Shape, 1>(score_gradients, gradients, shared, pass_at, minus_delta);
        shared.gradient_ring.release_warp(at);
        multiply_columns<Shape, 1, 2>(sums, score_gradients, shared.query[at.stage()]);
        at.advance();
      });
      ptx::wgmma_wait<0>(sums);
      shared.query_ring.pass_warp(before);
      shared.key_ring.pass_warp(key_at);
    }
    store_key_rows<Shape>(call, tile, call.key_gradient, row_in_block, call.scale, sums);
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    wide_backward_kernel(const __grid_constant__ BackwardCall call) {
  run_block<Shape, WideShared<Shape>>(
      call, [&](KeyTile& to, int index) { to = key_tile<Shape>(call, index); },
      [&](auto& shared) {
        if (threadIdx.x == 0) load_tiles<Shape>(call, shared);
      },
      [&](auto& shared) {
        if (threadIdx.x < 2 * kWarpgroup) {
          consume_values<Shape>(call, shared);
        } else {
          consume_keys<Shape>(call, shared);
        }
      });
}

}  // namespace headroom::cuda::sm90
