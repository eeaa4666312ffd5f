// dQ on Hopper for heads of 192 and 256. Their dK and dV fill the registers of a block with 64 keys alone, so
// that a dQ summed beside them would cross the memory four times as often as its products are worth: here a
// block keeps 128 queries with their dQ instead and makes the scores and their gradients once more. Seven
// products instead of five, no sums in memory, and one order of summing without waiting for turns.
#pragma once

#include "attention/cuda/sm90/forward.cuh"

namespace headroom::cuda::sm90 {

template <class ElementType, int kHead, bool kOfGeneral>
struct QueriesShape : KernelShape<ElementType, kHead, kOfGeneral> {
  static constexpr const char* kName = "queries_backward_kernel";
  static constexpr QueriesTile kTile = head_tiles(kHead, kOfGeneral).queries;
  static constexpr int kRows = kTile.queries;
  static_assert(kRows == 64 * QueriesShape::kConsumers);
  static constexpr int kKeys = kTile.keys;
  static constexpr bool kOwnKeyTiles = false;  // both consumers take every key tile
  static constexpr int kKeyStages = kTile.key_stages;
  static constexpr int kValueStages = kTile.value_stages;
};

template <class Shape>
struct alignas(1024) QueriesShared {
  using Element = typename Shape::Element;
  alignas(1024) Element query[Shape::kRows * Shape::kColumns];
  alignas(1024) Element output_gradient[Shape::kRows * Shape::kColumns];
  alignas(1024) Element key[Shape::kKeyStages][Shape::kKeys * Shape::kColumns];
  alignas(1024) Element value[Shape::kValueStages][Shape::kKeys * Shape::kColumns];
  Ring<1> query_ring;  // queries and gradients of outputs
  Ring<Shape::kKeyStages> key_ring;
  Ring<Shape::kValueStages> value_ring;
  Tiles<QueryTile> tiles;
  std::uint32_t never_written;

  __device__ __forceinline__ void init() {
    init_rings(1, Shape::kConsumerWarps, query_ring, key_ring, value_ring);
    tiles.init(Shape::kConsumerWarps + 1);
  }
};

// ---- producer

template <class Shape>
__device__ void load(const QueriesCall& call, QueriesShared<Shape>& shared) {
  RingPosition<1> query_at;
  RingPosition<Shape::kKeyStages> key_at;
  RingPosition<Shape::kValueStages> value_at;
  for (TilePosition tile_at; shared.tiles.wait(tile_at); shared.tiles.pass(tile_at)) {
    const QueryTile& tile = shared.tiles[tile_at];
    if (tile.key_tiles == 0) shared.tiles.request_next();
    if (tile.key_tiles == 0) continue;
    std::uint64_t& query_full =
        shared.query_ring.wait_to_load(query_at, sizeof(shared.query) + sizeof(shared.output_gradient));
    const HeadPlaces queries(call.queries, tile.batch, tile.head);
    load_rows<Shape::kRows, Shape::kColumns>(shared.query, call.query, query_full, queries, tile.first_place,
                                             tile.head, tile.batch);
    load_rows<Shape::kRows, Shape::kColumns>(shared.output_gradient, call.output_gradient, query_full,
                                             queries, tile.first_place, tile.head, tile.batch);
    query_at.advance();
    for (int n = tile.key_tiles - 1; n >= 0; --n) {
      if (n == min(tile.key_tiles - 1, kRequestedAhead)) shared.tiles.request_next();
      const int place = tile.first_key + key_begin<Shape>(key_entry<Shape>(call, tile, n));
      const auto load_keys = [&](auto& ring, auto& at, auto& to, const CUtensorMap& map) {
        std::uint64_t& full = ring.wait_to_load(at, sizeof(to[0]));
        load_rows<Shape::kKeys, Shape::kColumns>(to[at.stage()], map, full,
                                                 HeadPlaces(call.keys, tile.batch, tile.head), place,
                                                 tile.key_head, tile.batch);
        at.advance();
      };
      load_keys(shared.key_ring, key_at, shared.key, call.key);
      load_keys(shared.value_ring, value_at, shared.value, call.value);
    }
  }
}

// ---- consumers

// Finish: a thread's two rows of dQ.
template <class Shape>
__device__ __forceinline__ void store_query_rows(const QueriesCall& call, const QueryTile& tile,
                                                 int row_in_block, const float (&sums)[Shape::kHeadDim / 2]) {
  write_rows<typename Shape::Element, Shape::kHeadDim>(
      call.query_gradient, call.rows, tile.batch, tile.head,
      RowEnds::of(call.queries, tile.batch, tile.head, tile.first_place, tile.places, row_in_block,
                  call.scale),
      sums, call.head_dim);
}

// Scores as they go into the exponential: capped, and -inf where a query does not see or list a key.
template <class Shape, int kScores>
__device__ __forceinline__ void shape_scores(float (&scores)[kScores], const QueriesCall& call,
                                             const QueryTile& tile, int entry, bool capped,
                                             const Range& every, int row_in_block) {
  const int tile_begin = key_begin<Shape>(entry);
  if constexpr (Shape::kGeneral) {
    if (capped) cap_scores(scores, call.scale, call.softcap);
    if (entry % 2 == 0) hide_unlisted_keys<Shape>(scores, call, tile, tile_begin, row_in_block);
  }
  if (tile_begin >= every.begin && tile_begin + Shape::kKeys <= every.end) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {  // intervals are made anew: there are no registers to keep them in
    keep_seen(scores, r, seen_keys(call, tile, row_in_block, r), tile_begin, column_of_thread());
  }
}

// Of a thread's two rows. Those past the end have what the last one has.
__device__ __forceinline__ void read_statistics(float (&lse)[2], float (&minus_delta)[2],
                                                const QueriesCall& call, const QueryTile& tile,
                                                int row_in_block) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int place = tile.first_place + min(row_in_block + 8 * r, tile.places - 1);
    const std::int64_t statistics =
        (static_cast<std::int64_t>(tile.batch) * call.heads_q + tile.head) * call.padded_places + place;
    lse[r] = call.lse[statistics];
    minus_delta[r] = call.minus_delta[statistics];
  }
}

template <class Shape>
__device__ void consume(const QueriesCall& call, QueriesShared<Shape>& shared) {
  using Element = typename Shape::Element;
  constexpr int kScores = Shape::kKeys / 2;
  const int consumer = warpgroup_index() - 1;
  const int row_in_block = row_of_thread(consumer * 64);
  const Element* query = shared.query + consumer * 64 * kTileColumns;
  const Element* output_gradient = shared.output_gradient + consumer * 64 * kTileColumns;
  const bool capped = Shape::kGeneral && call.softcap > 0;
  const float scale_log2 = (capped ? call.softcap : call.scale) * kLog2E;
  RingPosition<1> query_at;
  TilePosition tile_at;
  RingPosition<Shape::kKeyStages> key_at;
  RingPosition<Shape::kKeyStages> before;  // the key tile whose product is on its way, where they overlap
  RingPosition<Shape::kValueStages> value_at;

  for (; shared.tiles.wait(tile_at); shared.tiles.pass_warp(tile_at)) {
    const QueryTile& tile = shared.tiles[tile_at];
    float sums[Shape::kHeadDim / 2] = {};
    if (tile.key_tiles > 0) {
      const auto seen = [&](int r) { return seen_keys(call, tile, row_in_block, r); };
      const int every_key_from = __reduce_max_sync(0xFFFFFFFF, max(seen(0).begin, seen(1).begin));
      const Range every{every_key_from, __reduce_min_sync(0xFFFFFFFF, min(seen(0).end, seen(1).end))};
      float lse[2];
      float minus_delta[2];
      read_statistics(lse, minus_delta, call, tile, row_in_block);
      shared.query_ring.wait_full(query_at);
      for (int n = tile.key_tiles - 1; n >= 0; --n) {
        const int entry = key_entry<Shape>(call, tile, n);
        float scores[kScores];
        float gradients[kScores];
        shared.key_ring.wait_full(key_at);
        multiply_rows<Shape, Shape::kRows>(scores, query, shared.key[key_at.stage()]);
        if constexpr (Shape::kTile.overlaps) {
          ptx::wgmma_wait<1>(sums);
          if (n + 1 < tile.key_tiles) shared.key_ring.pass_warp(before);
        }
        shared.value_ring.wait_full(value_at);
        multiply_rows<Shape, Shape::kRows>(gradients, output_gradient, shared.value[value_at.stage()]);
        if constexpr (Shape::kTile.overlaps) {
          ptx::wgmma_wait<1>(scores);
        } else {
          ptx::wgmma_wait<0>(scores, gradients);
          shared.value_ring.pass_warp(value_at);
        }
        shape_scores<Shape>(scores, call, tile, entry, capped, every, row_in_block);
        const auto probability = [&](int i) {  // times the softcap's slope
          const float p = ptx::exp2_approximate(fmaf(scores[i], scale_log2, -lse[i % 4 / 2]));
          if (!capped) return p;
          return p > 0 ? p * (1 - scores[i] * scores[i]) : 0;
        };
        std::uint32_t score_gradients[kScores / 2];
        if constexpr (Shape::kTile.overlaps) {
          std::uint32_t signs = 0;  // of probabilities, which are not negative
#pragma unroll
          for (int i = 0; i < kScores; ++i) {
            scores[i] = probability(i);
            signs |= __float_as_uint(scores[i]);
          }
          ptx::finish_first(signs >> 31, &shared.never_written);
          ptx::wgmma_wait<0>(gradients);
          shared.value_ring.pass_warp(value_at);
        }
        const auto score_gradient = [&](int i) {
          return (Shape::kTile.overlaps ? scores[i] : probability(i)) *
                 (gradients[i] + minus_delta[i % 4 / 2]);
        };
        const auto make_half = [&](int half) {
#pragma unroll
          for (int i = half * kScores / 2; i < (half + 1) * kScores / 2; i += 2)
            score_gradients[i / 2] = ptx::pack<Element>(score_gradient(i), score_gradient(i + 1));
        };
        make_half(0);
        multiply_columns<Shape, 0, 2>(sums, score_gradients, shared.key[key_at.stage()]);  // dQ += dS K
        make_half(1);
        multiply_columns<Shape, 1, 2>(sums, score_gradients, shared.key[key_at.stage()]);
        if constexpr (Shape::kTile.overlaps) {
          key_at.advance();
        } else {
          ptx::wgmma_wait<0>(sums);
          shared.key_ring.pass_warp(key_at);
        }
      }
      if constexpr (Shape::kTile.overlaps) {
        ptx::wgmma_wait<0>(sums);
        shared.key_ring.pass_warp(before);
      }
      shared.query_ring.pass_warp(query_at);
    }
    store_query_rows<Shape>(call, tile, row_in_block, sums);
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    queries_backward_kernel(const __grid_constant__ QueriesCall call) {
  run_block<Shape, QueriesShared<Shape>>(
      call, [&](QueryTile& to, int index) { to = query_tile<Shape>(call, index); },
      [&](auto& shared) {
        if (threadIdx.x == 0) load<Shape>(call, shared);
      },
      [&](auto& shared) { consume<Shape>(call, shared); });
}

}  // namespace headroom::cuda::sm90
