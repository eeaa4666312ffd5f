// Attention backward on Hopper. A block keeps a tile of keys and values with the sums of their gradients and
// takes the query tiles that see them one after the other, last to first: scores and probabilities again
// (transposed, so that they are the left operand of dV and dK without leaving registers), then the gradients
// of scores, which also go through shared memory into dQ. One warp loads, two add dQ to global memory, two
// warpgroups of 64 keys compute.
//
// dQ comes from many blocks. Deterministic: blocks add to a query tile in the order of their keys, each
// waiting for its turn. A block waits only for blocks that took their work before it, so there is always one
// that can go on; and as neighbours in the order work on different heads, waits are short.
#pragma once

#include "attention/cuda/sm90/query_sums.cuh"

namespace headroom::cuda::sm90 {

template <class ElementType, int kHead, bool kOfGeneral>
struct BackwardShape {
  using Element = ElementType;
  static constexpr bool kGeneral = kOfGeneral;
  static constexpr int kHeadDim = kHead;
  static constexpr int kColumns = pad_columns(kHead);
  static constexpr int kConsumers = 2;
  static constexpr int kKeys = 64 * kConsumers;
  static constexpr int kQueries = backward_tile(kHead, kOfGeneral).queries;
  static constexpr int kStages = 2;
  static constexpr int kThreads = kWarpgroup * (kConsumers + 1);
  // dQ of a tile is shared out by columns where the tile has 64 queries, by queries where it has 128.
  static constexpr bool kSplitColumns = kQueries == 64;
  static constexpr int kQueryColumns = kSplitColumns ? kHeadDim / 2 : kHeadDim;
  static constexpr QueryShare kShares[kConsumers] = {
      {kQueryColumns, 0, 0}, {kQueryColumns, kSplitColumns ? kQueryColumns : 0, kSplitColumns ? 0 : 64}};
  // With 128 queries there are registers for one form of the probabilities, the one that is multiplied.
  static constexpr bool kRounded = kQueries == 128;
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kProducerRegisters = 40;
};

template <class Shape>
struct alignas(1024) BackwardShared {
  using Element = typename Shape::Element;
  alignas(1024) Element key[Shape::kKeys * Shape::kColumns];
  alignas(1024) Element value[Shape::kKeys * Shape::kColumns];
  alignas(1024) Element query[Shape::kStages][Shape::kQueries * Shape::kColumns];
  alignas(1024) Element output_gradient[Shape::kStages][Shape::kQueries * Shape::kColumns];
  alignas(1024) Element
      score_gradient[2][Shape::kKeys * Shape::kQueries];  // tiles of 64 queries, a key per row
  alignas(1024) float query_sums[2][Shape::kQueries * Shape::kHeadDim];
  alignas(16) float lse[Shape::kStages][Shape::kQueries];
  alignas(16) float delta[Shape::kStages][Shape::kQueries];
  Ring<1> key_ring;  // keys and values of a piece of work
  Ring<Shape::kStages> query_ring;
  Ring<Shape::kStages> gradient_ring;
  Ring<2> sums_ring;
  Ring<2> tile_ring;
  KeyTile tile[2];
};

// ---- the warps that add dQ

// Two, each with every other tile: while one waits for its turn and for its bytes to arrive, the other goes
// on.
inline constexpr int kAdders = 2;

template <class Shape>
__device__ void add_query_sums(const BackwardCall& call, BackwardShared<Shape>& shared, int adder) {
  RingPosition<2> sums_at;
  RingPosition<2> tile_at;
  const int query_tiles = call.padded_places / Shape::kQueries;
  while (true) {
    shared.tile_ring.wait_full(tile_at);
    const KeyTile& tile = shared.tile[tile_at.stage];
    if (tile.none) return;
    for_each_query_tile<Shape>(call, tile, [&](int head, int visit) {
      if (sums_at.stage == adder) {
        const std::int64_t query_tile =
            (static_cast<std::int64_t>(tile.batch) * call.heads_q + head) * query_tiles +
            query_tile_of<Shape>(call, visit);
        float* to = call.query_sums + query_tile * (Shape::kQueries * Shape::kHeadDim);
        bool first = false;
        if (call.turns != nullptr) {
          // The first need not find zeros.
          const int turn = turn_of<Shape>(call, tile, head, visit);
          first = turn == 0;
          if (!first) wait_for_turn(call.turns + query_tile, turn);
        }
        shared.sums_ring.wait_full(sums_at);
        const float* from = shared.query_sums[sums_at.stage];
        if (first) {
          ptx::bulk_store(to, from, sizeof(shared.query_sums[0]));
        } else {
          ptx::bulk_add(to, from, sizeof(shared.query_sums[0]));
        }
        ptx::bulk_commit();
        ptx::bulk_wait_read<0>();
        shared.sums_ring.release(sums_at);
        if (call.turns != nullptr) {
          ptx::bulk_wait<0>();
          next_turn(call.turns + query_tile);
        }
      }
      sums_at.advance();
    });
    shared.tile_ring.release(tile_at);
    tile_at.advance();
  }
}

// ---- consumers

// D = A B^T over the head's columns: 64 rows of A with the rows of B.
template <class Shape>
__device__ __forceinline__ void multiply_rows(float (&scores)[Shape::kQueries / 2],
                                              const typename Shape::Element* a,
                                              const typename Shape::Element* b) {
#pragma unroll
  for (int k = 0; k < Shape::kHeadDim; k += 16) {
    const int tile = k / kTileColumns;
    const int within = k % kTileColumns;
    ptx::wgmma<typename Shape::Element, Shape::kQueries, ptx::Major::inner, ptx::Major::inner>(
        scores, ptx::matrix_descriptor(a + tile * kTileColumns * Shape::kKeys + within),
        ptx::matrix_descriptor(b + tile * kTileColumns * Shape::kQueries + within), k != 0);
  }
}

// Sums of 64 keys += A [64 keys x queries, in registers] B [queries x head_dim].
template <class Shape>
__device__ __forceinline__ void multiply_queries(float (&sums)[Shape::kHeadDim / 2],
                                                 const std::uint32_t (&a)[Shape::kQueries / 4],
                                                 const typename Shape::Element* b) {
  constexpr std::uint32_t kColumnTileBytes = Shape::kQueries * kTileColumns * 2;
#pragma unroll
  for (int k = 0; k < Shape::kQueries; k += 16) {
    ptx::wgmma<typename Shape::Element, Shape::kHeadDim, ptx::Major::outer>(
        sums, a + k / 4, ptx::matrix_descriptor(b + k * kTileColumns, kColumnTileBytes), true);
  }
}

// This consumer's share of dQ = dS K: 64 queries of kQueryColumns columns.
template <class Shape>
__device__ __forceinline__ void multiply_keys(float (&sums)[Shape::kQueryColumns / 2],
                                              const typename Shape::Element* score_gradient,
                                              const typename Shape::Element* key, int consumer) {
  constexpr std::uint32_t kColumnTileBytes = Shape::kKeys * kTileColumns * 2;
  const int first_column = Shape::kSplitColumns ? consumer * Shape::kQueryColumns : 0;
  const auto* a = score_gradient + (Shape::kSplitColumns ? 0 : consumer * Shape::kKeys * kTileColumns);
  const auto* b =
      key + first_column / kTileColumns * kTileColumns * Shape::kKeys + first_column % kTileColumns;
#pragma unroll
  for (int k = 0; k < Shape::kKeys; k += 16) {
    ptx::wgmma<typename Shape::Element, Shape::kQueryColumns, ptx::Major::outer, ptx::Major::outer>(
        sums, ptx::matrix_descriptor(a + k * kTileColumns, kColumnTileBytes),
        ptx::matrix_descriptor(b + k * kTileColumns, kColumnTileBytes), k != 0);
  }
}

template <class Shape>
__device__ void consume(const BackwardCall& call, BackwardShared<Shape>& shared) {
  using Element = typename Shape::Element;
  constexpr int kScores = Shape::kQueries / 2;
  constexpr int kGradientsWritten = 1;  // named barrier of both consumers
  const int consumer =
      __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1;  // uniform, and known so
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int lane = thread % 32;
  const int row_in_block = consumer * 64 + thread / 32 * 16 + lane / 4;
  const Element* key = shared.key + consumer * 64 * kTileColumns;
  const Element* value = shared.value + consumer * 64 * kTileColumns;
  const float scale_log2 = (Shape::kGeneral && call.softcap > 0 ? call.softcap : call.scale) * kLog2E;
  // Where this lane's row of an 8 x 8 tile goes: rows are 128 bytes, their 16-byte pieces swapped by the
  // row's last bits.
  const int matrix_row = consumer * 64 + thread / 32 * 16 + lane % 16;
  const int matrix_piece = lane / 16;
  RingPosition<1> key_at;
  RingPosition<2> sums_at;
  RingPosition<2> tile_at;
  RingPosition<2> gradients_at;
  RingPosition<Shape::kStages> query_at;
  RingPosition<Shape::kStages> gradient_at;

  while (true) {
    shared.tile_ring.wait_full(tile_at);
    const KeyTile& tile = shared.tile[tile_at.stage];  // stays there until the end: registers are short
    if (tile.none) break;
    float key_sums[Shape::kHeadDim / 2] = {};
    float value_sums[Shape::kHeadDim / 2] = {};

    if (tile.query_tiles > 0) {
      SeenBy seen_by;
      if constexpr (!Shape::kGeneral) seen_by = SeenBy(call, tile, Shape::kKeys, row_in_block);
      shared.key_ring.wait_full(key_at);

      for_each_query_tile<Shape>(call, tile, [&](int head, int visit) {
        float scores[kScores];
        float gradients[kScores];
        shared.query_ring.wait_full(query_at);
        ptx::wgmma_fence();
        multiply_rows<Shape>(scores, key, shared.query[query_at.stage]);
        ptx::wgmma_commit();
        shared.gradient_ring.wait_full(gradient_at);
        ptx::wgmma_fence();
        multiply_rows<Shape>(gradients, value, shared.output_gradient[gradient_at.stage]);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
        ptx::wgmma_pin(scores);

        // P, from the scores and the forward pass's log-sum-exp of each query (a column here).
        const int first_column = lane % 4 * 2;
        shape_scores<Shape>(scores, call, tile, head, visit, seen_by, row_in_block, first_column);
        const float* lse = shared.lse[query_at.stage] + first_column;
        std::uint32_t probabilities[Shape::kQueries / 4];
#pragma unroll
        for (int i = 0; i < kScores; i += 2) {
          const float2 column = *reinterpret_cast<const float2*>(lse + i / 4 * 8);
          const float p = ptx::exp2_approximate(fmaf(scores[i], scale_log2, -column.x));
          const float q = ptx::exp2_approximate(fmaf(scores[i + 1], scale_log2, -column.y));
          probabilities[i / 2] = ptx::pack<Element>(p, q);
          // With a softcap, times its slope: 1 - tanh^2; where the mask hides a pair, P is zero and the slope
          // is none.
          scores[i] = Shape::kGeneral && call.softcap > 0 && p > 0 ? p * (1 - scores[i] * scores[i]) : p;
          scores[i + 1] =
              Shape::kGeneral && call.softcap > 0 && q > 0 ? q * (1 - scores[i + 1] * scores[i + 1]) : q;
        }

        // dS = P (dP - delta).
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(gradients);
        const float* delta = shared.delta[gradient_at.stage] + first_column;
        std::uint32_t score_gradients[Shape::kQueries / 4];
#pragma unroll
        for (int i = 0; i < kScores; i += 2) {
          const float2 column = *reinterpret_cast<const float2*>(delta + i / 4 * 8);
          const float2 p = Shape::kRounded ? ptx::unpack<Element>(probabilities[i / 2])
                                           : make_float2(scores[i], scores[i + 1]);
          score_gradients[i / 2] =
              ptx::pack<Element>(p.x * (gradients[i] - column.x), p.y * (gradients[i + 1] - column.y));
        }
        Element* shared_gradients = shared.score_gradient[gradients_at.stage];
        const std::uint32_t row_address = ptx::shared_address(shared_gradients) + matrix_row * 128;
#pragma unroll
        for (int k = 0; k < Shape::kQueries; k += 16) {
          const std::uint32_t tile_address = row_address + k / kTileColumns * (Shape::kKeys * 128);
          const int piece = k % kTileColumns / 8 + matrix_piece;
          const std::uint32_t* pairs = score_gradients + k / 4;
          ptx::store_matrix(tile_address + ((piece ^ (matrix_row & 7)) << 4), pairs[0], pairs[1], pairs[2],
                            pairs[3]);
        }

        // dV += P^T dO; dQ = dS K; dK += dS^T Q.
        ptx::wgmma_fence();
        multiply_queries<Shape>(value_sums, probabilities, shared.output_gradient[gradient_at.stage]);
        ptx::wgmma_commit();
        ptx::async_proxy_fence();
        ptx::named_barrier_sync(kGradientsWritten, Shape::kConsumers * kWarpgroup);
        float query_sums[Shape::kQueryColumns / 2];
        ptx::wgmma_fence();
        multiply_keys<Shape>(query_sums, shared_gradients, shared.key, consumer);
        ptx::wgmma_commit();
        gradients_at.advance();
        ptx::wgmma_wait<1>();
        ptx::wgmma_pin(value_sums);
        shared.gradient_ring.release(gradient_at);
        gradient_at.advance();
        ptx::wgmma_fence();
        multiply_queries<Shape>(key_sums, score_gradients, shared.query[query_at.stage]);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
        ptx::wgmma_pin(query_sums);
        shared.sums_ring.wait_empty(sums_at);
        auto* sums = reinterpret_cast<float4*>(shared.query_sums[sums_at.stage] +
                                               consumer * 64 * Shape::kQueryColumns) +
                     thread;
#pragma unroll
        for (int i = 0; i < Shape::kQueryColumns / 8; ++i) {
          sums[i * kWarpgroup] = make_float4(query_sums[4 * i], query_sums[4 * i + 1], query_sums[4 * i + 2],
                                             query_sums[4 * i + 3]);
        }
        ptx::async_proxy_fence();
        shared.sums_ring.publish(sums_at);
        sums_at.advance();
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(key_sums);
        shared.query_ring.release(query_at);
        query_at.advance();
      });
      shared.key_ring.release(key_at);
      key_at.advance();
    }

    store_key_rows<Shape>(call, tile, call.key_gradient, row_in_block, call.scale, key_sums);
    store_key_rows<Shape>(call, tile, call.value_gradient, row_in_block, 1, value_sums);
    shared.tile_ring.release(tile_at);
    tile_at.advance();
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    backward_kernel(const __grid_constant__ BackwardCall call) {
  extern __shared__ std::uint8_t raw[];
  auto& shared = *reinterpret_cast<BackwardShared<Shape>*>(raw);
  const int tiles = call.order.tiles_per_head * call.order.heads;
  if (threadIdx.x == 0) {
    constexpr std::uint32_t kComputing = Shape::kConsumers * kWarpgroup;
    shared.key_ring.init(1, kComputing);
    shared.query_ring.init(1, kComputing);
    shared.gradient_ring.init(1, kComputing);
    shared.sums_ring.init(kComputing, 1);
    shared.tile_ring.init(1, kComputing + kAdders);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    ptx::give_registers<Shape::kProducerRegisters>();
    if (threadIdx.x == 0) load_tiles<Shape>(call, shared, tiles);
    const int adder = static_cast<int>(threadIdx.x) / 32 - 1;
    if (threadIdx.x % 32 == 0 && adder >= 0 && adder < kAdders) add_query_sums<Shape>(call, shared, adder);
  } else {
    ptx::take_registers<Shape::kConsumerRegisters>();
    consume<Shape>(call, shared);
  }
}

}  // namespace headroom::cuda::sm90
