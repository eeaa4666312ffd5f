// Attention backward on Hopper. A block keeps a tile of keys and values with the sums of their gradients and
// takes the query tiles that see them one after the other: scores and probabilities again
// (transposed, so that they are the left operand of dV and dK without leaving registers), then the gradients
// of scores, which also go through shared memory into dQ. One warp loads, one hands out tiles, two add dQ to
// global memory, two warpgroups of 64 keys compute.
//
// Products and arithmetic of a consumer overlap: while it exponentiates scores, the tensor cores are at dP;
// while it makes dS, at dV. P is made and multiplied in two halves of the queries, so that there is something
// to multiply early, and where registers allow it (BackwardTile), the second half is issued before dP is
// waited for. dS is made at once: it has to be stored before the products of dK, which it would wait behind.
// dQ of 64 queries is one consumer's work: where a tile has no more, consumers take turns, and while one
// makes and hands over dQ the other goes on; where a tile has 128, both make theirs a step late, beside dK.
// Operands of products, dS and dQ take about 2,650 clocks of shared memory a step, more than the tensor cores
// take. In a row of passes power is a limit too (docs/kernels/attention_sm90.md).
//
// dQ comes from many blocks. Deterministic: blocks add to a query tile in the order of their keys, each
// waiting for its turn. A block waits only for blocks that took their work before it, so there is always one
// that can go on; and as neighbours in the order work on different heads, waits are short.
#pragma once

#include "attention/cuda/sm90/query_sums.cuh"

namespace headroom::cuda::sm90 {

// Named barriers between the two consumers; 0 is that of the whole block.
enum BackwardBarrier : int {
  kWritten = 1,  // dS of a stage: one for each stage; and consumer that waits, where both do
  kRead = 5,     // one for each stage and consumer that waits
};

template <class ElementType, int kHead, bool kOfGeneral>
struct BackwardShape : KernelShape<ElementType, kHead, kOfGeneral> {
  static constexpr const char* kName = "backward_kernel";
  static constexpr BackwardTile kTile = head_tiles(kHead, kOfGeneral).backward;
  static constexpr int kKeys = kTile.keys;
  static_assert(kKeys == 64 * BackwardShape::kConsumers);
  static constexpr int kQueries = kTile.queries;
  static constexpr int kStages = 2;  // of dS and of the sums of dQ, too
  static constexpr bool kTakeTurns = kQueries == 64;
  static constexpr bool kReadsAllFirst = kQueries == 64 && !kOfGeneral;  // the log-sum-exp of both halves
  static_assert(!kOfGeneral || !kTile.wide_probabilities, "a softcap's slope is in the packed weights");
};

// Two warps add dQ, each with every other tile: while one waits for its turn and for its bytes to arrive, the
// other goes on.
inline constexpr int kAdders = 2;
static_assert(kHandOutThread / 32 > kAdders, "the first warp loads, the next ones add");

template <class Shape>
struct alignas(1024) BackwardShared {
  using Element = typename Shape::Element;
  alignas(1024) Element key[Shape::kKeys * Shape::kColumns];
  alignas(1024) Element value[Shape::kKeys * Shape::kColumns];
  alignas(1024) Element query[Shape::kStages][Shape::kQueries * Shape::kColumns];
  alignas(1024) Element output_gradient[Shape::kStages][Shape::kQueries * Shape::kColumns];
  alignas(1024) Element
      score_gradient[2][Shape::kKeys * Shape::kQueries];  // tiles of 64 keys, a query per row
  alignas(1024) float query_sums[2][Shape::kQueries * Shape::kHeadDim];
  alignas(16) float lse[Shape::kStages][Shape::kQueries];
  alignas(16) float minus_delta[Shape::kStages][Shape::kQueries];
  Ring<1> key_ring;  // keys and values of a piece of work
  Ring<Shape::kStages> query_ring;
  Ring<Shape::kStages> gradient_ring;
  Ring<2> sums_ring;
  Tiles<KeyTile> tiles;
  std::uint32_t never_written;

  __device__ __forceinline__ void init() {
    constexpr std::uint32_t kWarps = Shape::kConsumerWarps;
    init_rings(1, kWarps, key_ring, query_ring, gradient_ring);
    sums_ring.init(Shape::kTakeTurns ? kWarps / 2 : kWarps, 1);
    tiles.init(kWarps + kAdders + 1);
  }
};

// ---- the warps that add dQ

template <class Shape>
__device__ void add_query_sums(const BackwardCall& call, BackwardShared<Shape>& shared, int adder) {
  RingPosition<2> sums_at;
  const int query_tiles = call.padded_places / Shape::kQueries;
  for (TilePosition tile_at; shared.tiles.wait(tile_at); shared.tiles.pass(tile_at)) {
    const KeyTile& tile = shared.tiles[tile_at];
    for_each_query_tile<Shape>(call, tile, [&](int head, int visit) {
      if (sums_at.stage() == adder) {
        const std::int64_t query_tile =
            (static_cast<std::int64_t>(tile.batch) * call.heads_q + head) * query_tiles +
            query_tile_of<Shape>(call, visit);
        float* to = call.query_sums + query_tile * (Shape::kQueries * Shape::kHeadDim);
        bool first = false;
        if (call.turns != nullptr) {
          // The first need not find zeros.
          const int turn = turn_of<Shape>(call, tile, head, visit);
          first = turn == 0 && !call.sums_are_open;
          if (turn > 0) wait_for_turn(call.turns + query_tile, turn);
        }
        shared.sums_ring.wait_full(sums_at);
        const float* from = shared.query_sums[sums_at.stage()];
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
          ptx::release_increment(call.turns + query_tile);  // the next turn
        }
      }
      sums_at.advance();
    });
  }
}

// ---- consumers

// 64 rows of shared memory as the left operand of products, over the head's columns.
template <class Shape>
__device__ __forceinline__ void load_rows_to_registers(std::uint32_t (&a)[Shape::kHeadDim / 4],
                                                       const typename Shape::Element* rows) {
  // Addresses are made anew for every tile: there are no registers to keep them in.
  const int thread = ptx::in_register(static_cast<int>(threadIdx.x) % kWarpgroup);
  const int row = thread / 32 * 16 + thread % 16;
  const int piece = thread % 32 / 16;
  const std::uint32_t address = ptx::shared_address(rows) + row * 128;
#pragma unroll
  for (int k = 0; k < Shape::kHeadDim; k += 16) {
    const int tile = k / kTileColumns;
    const int within = k % kTileColumns / 8;
    std::uint32_t quad[4];
    ptx::load_matrix(address + tile * kTileColumns * Shape::kKeys * 2 + (((within + piece) ^ (row & 7)) << 4),
                     quad);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[k / 4 + i] = quad[i];
  }
}

// D = A B^T likewise, with A in registers.
template <class Shape, bool kAdds>
__device__ __forceinline__ void multiply_register_rows(float (&scores)[Shape::kQueries / 2],
                                                       const std::uint32_t (&a)[Shape::kHeadDim / 4],
                                                       const typename Shape::Element* b_rows) {
  ptx::wgmma_fence();
  const auto b = ptx::MatrixDescriptor::of(b_rows);
#pragma unroll
  for (int k = 0; k < Shape::kHeadDim; k += 16) {
    const int tile = k / kTileColumns;
    const int within = k % kTileColumns;
    ptx::wgmma<typename Shape::Element, Shape::kQueries, ptx::Major::inner>(
        scores, a + k / 4, b + (tile * kTileColumns * Shape::kQueries + within), kAdds || k != 0);
  }
  ptx::wgmma_commit();
}

// A number of each query of half a tile.
template <class Shape>
using HalfColumns = Columns<Shape::kQueries / 2>;

// Sets the sums of dP to a number for each column, before any product is issued.
template <int kCount>
__device__ __forceinline__ void begin_columns(float (&sums)[kCount], const float* first) {
  Columns<2 * kCount> columns;
  columns.read(first);
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = columns.of(i);
  ptx::wgmma_pin(sums);
}

// dQ of 64 queries = dS K.
template <class Shape>
__device__ __forceinline__ void multiply_keys(float (&sums)[Shape::kHeadDim / 2],
                                              const typename Shape::Element* score_gradient,
                                              const typename Shape::Element* key) {
  ptx::wgmma_fence();
  const auto a = ptx::MatrixDescriptor::of(score_gradient);
  const auto b = ptx::MatrixDescriptor::of(key, Shape::kKeys * kTileColumns * 2);
#pragma unroll
  for (int k = 0; k < Shape::kKeys; k += 16) {
    const int tile = k / 64;
    const int within = k % 64;
    ptx::wgmma<typename Shape::Element, Shape::kHeadDim, ptx::Major::inner, ptx::Major::outer>(
        sums, a + (tile * 64 * Shape::kQueries + within), b + k * kTileColumns, k != 0);
  }
  ptx::wgmma_commit();
}

// What two consumers tell each other: dS of a stage is there, and it has been read.
template <bool kTakeTurns>
struct ScoreGradientBarriers {
  int consumer;

  // Whether this consumer multiplies dS of a stage into dQ.
  [[nodiscard]] __device__ __forceinline__ bool reads(int stage) const {
    return !kTakeTurns || stage == consumer;
  }
  // Before it is written: who reads it alone knows that he has.
  __device__ __forceinline__ void wait_read(int stage) const {
    if (kTakeTurns && reads(stage)) return;
    ptx::named_barrier_sync(kRead + 2 * stage + consumer, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void pass_read(int stage) const {
    ptx::named_barrier_arrive(kRead + 2 * stage + 1 - consumer, 2 * kWarpgroup);
  }
  // Who reads it alone waits at once until the other has written; where both read it, they wait later.
  __device__ __forceinline__ void pass_written(int stage) const {
    if constexpr (!kTakeTurns) {
      ptx::named_barrier_arrive(kWritten + 2 * stage + 1 - consumer, 2 * kWarpgroup);
    } else if (reads(stage)) {
      ptx::named_barrier_sync(kWritten + stage, 2 * kWarpgroup);
    } else {
      ptx::named_barrier_arrive(kWritten + stage, 2 * kWarpgroup);
    }
  }
  __device__ __forceinline__ void wait_written(int stage) const {
    if constexpr (!kTakeTurns) ptx::named_barrier_sync(kWritten + 2 * stage + consumer, 2 * kWarpgroup);
  }
  // At first, everything has been read; at last, barriers end as they began.
  __device__ __forceinline__ void begin() const {
    for (int stage = 0; stage < 2; ++stage) {
      if (reads(stage)) pass_read(stage);
    }
  }
  __device__ __forceinline__ void end() const {
    for (int stage = 0; stage < 2; ++stage) wait_read(stage);
  }
};

// P of half the queries, from scores and the forward pass's log-sum-exp of each query (a column here), in the
// form that is multiplied. For dS, P also takes the place of the scores where the shape has wide
// probabilities; elsewhere `weights` are P again, with a softcap times its slope, 1 - tanh^2. Where the mask
// hides a pair, P is zero and the slope is none.
template <class Shape, int kHalf>
__device__ __forceinline__ void make_probabilities(std::uint32_t (&probabilities)[Shape::kQueries / 4],
                                                   std::uint32_t (&weights)[Shape::kQueries / 4],
                                                   float (&scores)[Shape::kQueries / 2],
                                                   const HalfColumns<Shape>& lse, float scale_log2,
                                                   bool capped) {
  using Element = typename Shape::Element;
#pragma unroll
  for (int n = 0; n < Shape::kQueries / 4; n += 2) {
    const int i = kHalf * Shape::kQueries / 4 + n;
    const float p = ptx::exp2_approximate(fmaf(scores[i], scale_log2, -lse.of(n)));
    const float q = ptx::exp2_approximate(fmaf(scores[i + 1], scale_log2, -lse.of(n + 1)));
    probabilities[i / 2] = ptx::pack<Element>(p, q);
    if constexpr (Shape::kTile.wide_probabilities) {
      scores[i] = p;
      scores[i + 1] = q;
    } else {
      weights[i / 2] = probabilities[i / 2];
      if (Shape::kGeneral && capped) {
        weights[i / 2] = ptx::pack<Element>(p > 0 ? p * (1 - scores[i] * scores[i]) : 0,
                                            q > 0 ? q * (1 - scores[i + 1] * scores[i + 1]) : 0);
      }
    }
  }
}

// None, as probabilities are not negative; but the assembler does not know.
template <int kCount>
__device__ __forceinline__ std::uint32_t sign_bits(const std::uint32_t (&pairs)[kCount]) {
  std::uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) bits |= pairs[i];
  return bits & 0x80008000;
}

// dS = P (dP - delta), likewise.
template <class Shape, int kHalf>
__device__ __forceinline__ void make_score_gradients(std::uint32_t (&score_gradients)[Shape::kQueries / 4],
                                                     const float (&scores)[Shape::kQueries / 2],
                                                     const std::uint32_t (&weights)[Shape::kQueries / 4],
                                                     const float (&gradients)[Shape::kQueries / 2],
                                                     const HalfColumns<Shape>& minus_delta) {
  using Element = typename Shape::Element;
  const auto centred = [&](int n) {
    const float gradient = gradients[kHalf * Shape::kQueries / 4 + n];
    return Shape::kTile.starts_from_delta ? gradient : gradient + minus_delta.of(n);
  };
#pragma unroll
  for (int n = 0; n < Shape::kQueries / 4; n += 2) {
    const int i = kHalf * Shape::kQueries / 4 + n;
    float2 p;
    if constexpr (Shape::kTile.wide_probabilities) {
      p = make_float2(scores[i], scores[i + 1]);
    } else {
      p = ptx::unpack<Element>(weights[i / 2]);
    }
    score_gradients[i / 2] = ptx::pack<Element>(p.x * centred(n), p.y * centred(n + 1));
  }
}

// dS into shared memory, a query per row and a tile for each consumer's 64 keys, so that a lane has one
// address and constants to add. Rows are 128 bytes, their 16-byte pieces swapped by the row's last bits; a
// lane has one row of an 8 x 8 tile.
template <class Shape>
__device__ __forceinline__ void store_score_gradients(
    typename Shape::Element* to, const std::uint32_t (&score_gradients)[Shape::kQueries / 4], int consumer) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int row = thread / 16 % 2 * 8 + thread % 8;
  const int piece = thread / 32 * 2 + thread / 8 % 2;
  const std::uint32_t address =
      ptx::shared_address(to) + consumer * Shape::kQueries * 128 + row * 128 + ((piece ^ (row & 7)) << 4);
#pragma unroll
  for (int k = 0; k < Shape::kQueries; k += 16) {
    const std::uint32_t* pairs = score_gradients + k / 4;
    ptx::store_matrix_transposed(address + k * 128, pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

// dQ of a consumer's 64 queries, from dS of a stage, as a group of products.
template <class Shape>
__device__ __forceinline__ void multiply_queries(float (&query_sums)[Shape::kHeadDim / 2],
                                                 BackwardShared<Shape>& shared, RingPosition<2> at,
                                                 int first_query,
                                                 const ScoreGradientBarriers<Shape::kTakeTurns>& barriers) {
  barriers.wait_written(at.stage());
  multiply_keys<Shape>(query_sums, shared.score_gradient[at.stage()] + first_query * kTileColumns,
                       shared.key);
}

// Once all but kPending groups are done, to the warps that add.
template <class Shape, int kPending>
__device__ __forceinline__ void hand_over(float (&query_sums)[Shape::kHeadDim / 2],
                                          BackwardShared<Shape>& shared, RingPosition<2> at, int first_query,
                                          const ScoreGradientBarriers<Shape::kTakeTurns>& barriers) {
  ptx::wgmma_wait<kPending>(query_sums);
  barriers.pass_read(at.stage());
  shared.sums_ring.wait_empty(at);
  auto* sums = reinterpret_cast<float4*>(shared.query_sums[at.stage()] + first_query * Shape::kHeadDim) +
               threadIdx.x % kWarpgroup;
#pragma unroll
  for (int i = 0; i < Shape::kHeadDim / 8; ++i) {
    sums[i * kWarpgroup] =
        make_float4(query_sums[4 * i], query_sums[4 * i + 1], query_sums[4 * i + 2], query_sums[4 * i + 3]);
  }
  ptx::async_proxy_fence();
  shared.sums_ring.publish_warp(at);
}

template <class Shape>
__device__ void consume(const BackwardCall& call, BackwardShared<Shape>& shared) {
  using Element = typename Shape::Element;
  const int consumer = warpgroup_index() - 1;
  const int row_in_block = row_of_thread(consumer * 64);
  const int first_column = column_of_thread();
  const Element* key = shared.key + consumer * 64 * kTileColumns;
  const Element* value = shared.value + consumer * 64 * kTileColumns;
  const bool capped = Shape::kGeneral && call.softcap > 0;
  const float scale_log2 = (capped ? call.softcap : call.scale) * kLog2E;
  const ScoreGradientBarriers<Shape::kTakeTurns> barriers{consumer};
  const int first_query = Shape::kTakeTurns ? 0 : consumer * 64;  // of those whose dQ is made here
  RingPosition<1> key_at;
  RingPosition<2> at;  // of queries, gradients and sums of dQ
  barriers.begin();

  for (TilePosition tile_at; shared.tiles.wait(tile_at); shared.tiles.pass_warp(tile_at)) {
    const KeyTile& tile = shared.tiles[tile_at];  // stays there until the end: registers are short
    float key_sums[Shape::kHeadDim / 2] = {};
    float value_sums[Shape::kHeadDim / 2] = {};

    if (tile.query_tiles > 0) {
      const SeenBy seen_by = Shape::kGeneral ? SeenBy{} : SeenBy(call, tile, Shape::kKeys, row_in_block);
      shared.key_ring.wait_full(key_at);
      std::uint32_t value_rows[Shape::kHeadDim / 4];
      if constexpr (Shape::kTile.value_in_registers) load_rows_to_registers<Shape>(value_rows, value);

      RingPosition<2> before = at;  // the step whose dQ is still to be made, where both consumers make it

      for_each_query_tile<Shape>(call, tile, [&](int head, int visit) {
        float scores[Shape::kQueries / 2];
        float gradients[Shape::kQueries / 2];
        shared.query_ring.wait_full(at);
        shared.gradient_ring.wait_full(at);
        const float* lse = shared.lse[at.stage()] + first_column;
        HalfColumns<Shape> first_lse;
        HalfColumns<Shape> second_lse;
        first_lse.read(lse);
        if constexpr (Shape::kReadsAllFirst) second_lse.read(lse + Shape::kQueries / 2);
        const float* minus_delta = shared.minus_delta[at.stage()] + first_column;
        constexpr bool kStarts = Shape::kTile.starts_from_delta;
        if constexpr (kStarts) begin_columns(gradients, minus_delta);
        multiply_rows<Shape, Shape::kKeys>(scores, key, shared.query[at.stage()]);  // S^T = K Q^T
        if constexpr (Shape::kTile.value_in_registers) {
          multiply_register_rows<Shape, kStarts>(gradients, value_rows, shared.output_gradient[at.stage()]);
        } else {
          multiply_rows<Shape, Shape::kKeys, kStarts>(gradients, value, shared.output_gradient[at.stage()]);
        }
        ptx::wgmma_wait<1>(scores);
        shape_scores<Shape>(scores, call, tile, head, visit, seen_by, row_in_block, first_column);
        const Element* query = shared.query[at.stage()];
        const Element* output_gradient = shared.output_gradient[at.stage()];
        std::uint32_t probabilities[Shape::kQueries / 4];
        std::uint32_t weights[Shape::kQueries / 4];
        make_probabilities<Shape, 0>(probabilities, weights, scores, first_lse, scale_log2, capped);
        if constexpr (!Shape::kReadsAllFirst) second_lse.read(lse + Shape::kQueries / 2);
        HalfColumns<Shape> first_delta;
        if constexpr (!kStarts) first_delta.read(minus_delta);
        multiply_columns<Shape, 0, 2>(value_sums, probabilities, output_gradient);  // dV += P^T dO
        make_probabilities<Shape, 1>(probabilities, weights, scores, second_lse, scale_log2, capped);
        HalfColumns<Shape> second_delta;
        if constexpr (!kStarts) second_delta.read(minus_delta + Shape::kQueries / 2);
        if constexpr (Shape::kTile.values_early) {
          multiply_columns<Shape, 1, 2>(value_sums, probabilities, output_gradient);
          ptx::wgmma_wait<2>(gradients);
        } else {
          ptx::finish_first(sign_bits(probabilities), &shared.never_written);
          ptx::wgmma_wait<1>(gradients);
          multiply_columns<Shape, 1, 2>(value_sums, probabilities, output_gradient);
        }

        std::uint32_t score_gradients[Shape::kQueries / 4];
        make_score_gradients<Shape, 0>(score_gradients, scores, weights, gradients, first_delta);
        make_score_gradients<Shape, 1>(score_gradients, scores, weights, gradients, second_delta);
        barriers.wait_read(at.stage());
        store_score_gradients<Shape>(shared.score_gradient[at.stage()], score_gradients, consumer);
        if constexpr (Shape::kTakeTurns)
          multiply_columns<Shape>(key_sums, score_gradients, query);  // dK += dS^T Q
        ptx::async_proxy_fence();
        barriers.pass_written(at.stage());
        if constexpr (!Shape::kTakeTurns) {
          if (before.step != at.step) {  // beside dK; then nobody waits for the other's dS
            float query_sums[Shape::kHeadDim / 2];
            multiply_queries<Shape>(query_sums, shared, before, first_query, barriers);
            multiply_columns<Shape>(key_sums, score_gradients, query);
            hand_over<Shape, 1>(query_sums, shared, before, first_query, barriers);
          } else {
            multiply_columns<Shape>(key_sums, score_gradients, query);
          }
          before = at;
        }
        ptx::wgmma_wait<1>(value_sums);
        shared.gradient_ring.release_warp(at);
        ptx::wgmma_wait<0>(key_sums);
        shared.query_ring.release_warp(at);
        if (Shape::kTakeTurns && barriers.reads(at.stage())) {
          float query_sums[Shape::kHeadDim / 2];
          multiply_queries<Shape>(query_sums, shared, at, first_query, barriers);
          hand_over<Shape, 0>(query_sums, shared, at, first_query, barriers);
        }
        at.advance();
      });
      if constexpr (!Shape::kTakeTurns) {
        float query_sums[Shape::kHeadDim / 2];
        multiply_queries<Shape>(query_sums, shared, before, first_query, barriers);
        hand_over<Shape, 0>(query_sums, shared, before, first_query, barriers);
      }
      shared.key_ring.pass_warp(key_at);
    }

    store_key_rows<Shape>(call, tile, call.key_gradient, row_in_block, call.scale, key_sums);
    store_key_rows<Shape>(call, tile, call.value_gradient, row_in_block, 1, value_sums);
  }
  barriers.end();
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    backward_kernel(const __grid_constant__ BackwardCall call) {
  run_block<Shape, BackwardShared<Shape>>(
      call, [&](KeyTile& to, int index) { to = key_tile<Shape>(call, index); },
      [&](auto& shared) {
        if (threadIdx.x == 0) load_tiles<Shape>(call, shared);
        const int adder = static_cast<int>(threadIdx.x) / 32 - 1;
        if (threadIdx.x % 32 == 0 && adder >= 0 && adder < kAdders)
          add_query_sums<Shape>(call, shared, adder);
      },
      [&](auto& shared) { consume<Shape>(call, shared); });
}

}  // namespace headroom::cuda::sm90
