// dQ on Hopper for heads of 192 and 256. Their dK and dV fill the registers of a block with 64 keys alone, so
// that a dQ summed beside them would cross the memory four times as often as its products are worth: here a
// block keeps 128 queries with their dQ instead and makes the scores and their gradients once more. Seven
// products instead of five, no sums in memory, and one order of summing without waiting for turns.
#pragma once

#include "attention/cuda/sm90/forward.cuh"

namespace headroom::cuda::sm90 {

template <class ElementType, int kHead>
struct QueriesShape {
  using Element = ElementType;
  static constexpr bool kGeneral = true;  // there are registers for it
  static constexpr int kHeadDim = kHead;
  static constexpr int kColumns = pad_columns(kHead);
  static constexpr int kConsumers = 2;
  static constexpr int kRows = kApartTile.queries;
  static constexpr int kKeys = kApartTile.keys;
  static_assert(kRows == 64 * kConsumers);
  static constexpr int kKeyStages = 2;
  static constexpr int kValueStages = kHead > 192 ? 1 : 2;  // 224 KiB of shared memory
  static constexpr int kThreads = kWarpgroup * (kConsumers + 1);
  static constexpr int kConsumerRegisters = kHead > 192 ? 240 : 232;
  static constexpr int kProducerRegisters = kHead > 192 ? 24 : 40;
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
  Ring<2> tile_ring;
  QueryTile tile[2];
};

// ---- producer

template <class Shape>
__device__ void produce(const QueriesCall& call, QueriesShared<Shape>& shared, int tiles) {
  constexpr std::uint32_t kTileBytes = sizeof(shared.key[0]);
  RingPosition<1> query_at;
  RingPosition<2> tile_at;
  RingPosition<Shape::kKeyStages> key_at;
  RingPosition<Shape::kValueStages> value_at;
  for (int index = static_cast<int>(blockIdx.x);;
       index = static_cast<int>(gridDim.x) + atomicAdd(call.next_tile, 1)) {
    shared.tile_ring.wait_empty(tile_at);
    QueryTile& tile = shared.tile[tile_at.stage()];  // read from there: registers are short
    tile = index < tiles ? query_tile<Shape>(call, index) : QueryTile{.none = true};
    shared.tile_ring.publish(tile_at);
    tile_at.advance();
    if (tile.none) return;
    if (tile.key_tiles == 0) continue;
    shared.query_ring.wait_empty(query_at);
    std::uint64_t& query_full = shared.query_ring.full[0];
    ptx::mbarrier_arrive_expect(query_full, sizeof(shared.query) + sizeof(shared.output_gradient));
    load_rows<Shape::kRows, Shape::kColumns>(shared.query, call.query, query_full, call.queries, tile.head,
                                             tile.first_place, tile.head, tile.batch);
    load_rows<Shape::kRows, Shape::kColumns>(shared.output_gradient, call.output_gradient, query_full,
                                             call.queries, tile.head, tile.first_place, tile.head,
                                             tile.batch);
    query_at.advance();
    for (int n = tile.key_tiles - 1; n >= 0; --n) {
      const int place = tile.first_key + key_begin<Shape>(key_entry<Shape>(call, tile, n));
      shared.key_ring.wait_empty(key_at);
      std::uint64_t& key_full = shared.key_ring.full[key_at.stage()];
      ptx::mbarrier_arrive_expect(key_full, kTileBytes);
      load_rows<Shape::kKeys, Shape::kColumns>(shared.key[key_at.stage()], call.key, key_full, call.keys,
                                               tile.head, place, tile.head / call.group, tile.batch);
      key_at.advance();
      shared.value_ring.wait_empty(value_at);
      std::uint64_t& value_full = shared.value_ring.full[value_at.stage()];
      ptx::mbarrier_arrive_expect(value_full, kTileBytes);
      load_rows<Shape::kKeys, Shape::kColumns>(shared.value[value_at.stage()], call.value, value_full,
                                               call.keys, tile.head, place, tile.head / call.group,
                                               tile.batch);
      value_at.advance();
    }
  }
}

// ---- consumers

// Finish: a thread's two rows of dQ.
template <class Shape>
__device__ __forceinline__ void store_query_rows(const QueriesCall& call, const QueryTile& tile,
                                                 int row_in_block, const float (&sums)[Shape::kHeadDim / 2]) {
  int row[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int place = row_in_block + 8 * r;
    row[r] = place < tile.places ? call.queries.row(tile.batch, tile.head, tile.first_place + place) : -1;
  }
  write_rows<typename Shape::Element, Shape::kHeadDim>(call.query_gradient, call.rows, tile.batch, tile.head,
                                                       row, 0, call.scale, sums, call.head_dim);
}

template <class Shape>
__device__ void consume(const QueriesCall& call, QueriesShared<Shape>& shared) {
  using Element = typename Shape::Element;
  constexpr int kScores = Shape::kKeys / 2;
  const int consumer = __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int row_in_block = consumer * 64 + thread / 32 * 16 + thread % 32 / 4;
  const Element* query = shared.query + consumer * 64 * kTileColumns;
  const Element* output_gradient = shared.output_gradient + consumer * 64 * kTileColumns;
  const float scale_log2 = (call.softcap > 0 ? call.softcap : call.scale) * kLog2E;
  RingPosition<1> query_at;
  RingPosition<2> tile_at;
  RingPosition<Shape::kKeyStages> key_at;
  RingPosition<Shape::kValueStages> value_at;

  while (true) {
    shared.tile_ring.wait_full(tile_at);
    const QueryTile& tile = shared.tile[tile_at.stage()];
    if (tile.none) break;
    float sums[Shape::kHeadDim / 2] = {};
    if (tile.key_tiles > 0) {
      // Keys a query sees, counted from the first key of the first tile.
      const auto seen = [&](int r) {
        const int place = tile.first_place + min(row_in_block + 8 * r, tile.places - 1);
        const Range range = call.seen.of(tile.batch, tile.head, place);
        return Range{range.begin - tile.first_key, range.end - tile.first_key};
      };
      const int every_key_from = __reduce_max_sync(0xFFFFFFFF, max(seen(0).begin, seen(1).begin));
      const int every_key_to = __reduce_min_sync(0xFFFFFFFF, min(seen(0).end, seen(1).end));
      float lse[2];
      float delta[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int place = tile.first_place + min(row_in_block + 8 * r, tile.places - 1);
        const std::int64_t statistics =
            (static_cast<std::int64_t>(tile.batch) * call.heads_q + tile.head) * call.padded_places + place;
        lse[r] = call.lse[statistics];
        delta[r] = call.delta[statistics];
      }
      shared.query_ring.wait_full(query_at);
      for (int n = tile.key_tiles - 1; n >= 0; --n) {
        const int entry = key_entry<Shape>(call, tile, n);
        float scores[kScores];
        float gradients[kScores];
        shared.key_ring.wait_full(key_at);
        ptx::wgmma_fence();
        multiply_scores<Shape>(scores, query, shared.key[key_at.stage()]);
        ptx::wgmma_commit();
        shared.value_ring.wait_full(value_at);
        ptx::wgmma_fence();
        multiply_scores<Shape>(gradients, output_gradient, shared.value[value_at.stage()]);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(scores);
        ptx::wgmma_pin(gradients);
        shared.value_ring.release_warp(value_at);
        value_at.advance();

        const int tile_begin = key_begin<Shape>(entry);
        const bool capped = call.softcap > 0;
        if (capped) cap_scores(scores, call.scale, call.softcap);
        if (entry % 2 == 0) hide_unlisted_keys<Shape>(scores, call, tile, tile_begin, row_in_block);
        if (tile_begin < every_key_from || tile_begin + Shape::kKeys > every_key_to) {
          const int column = tile_begin + thread % 4 * 2;
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const Range keys = seen(r);  // made anew: there are no registers to keep it in
#pragma unroll
            for (int i = 2 * r; i < kScores; i += i % 2 == 0 ? 1 : 3) {
              const int key = column + i / 4 * 8 + i % 2;
              if (key < keys.begin || key >= keys.end) scores[i] = -INFINITY;
            }
          }
        }
        // dS = P (dP - delta), times the softcap's slope.
        const auto score_gradient = [&](int i) {
          const int r = i % 4 / 2;
          float p = ptx::exp2_approximate(fmaf(scores[i], scale_log2, -lse[r]));
          if (capped) p = p > 0 ? p * (1 - scores[i] * scores[i]) : 0;
          return p * (gradients[i] - delta[r]);
        };
        std::uint32_t score_gradients[kScores / 2];
#pragma unroll
        for (int i = 0; i < kScores; i += 2)
          score_gradients[i / 2] = ptx::pack<Element>(score_gradient(i), score_gradient(i + 1));
        ptx::wgmma_fence();
        multiply_values<Shape>(sums, score_gradients, shared.key[key_at.stage()]);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(sums);
        shared.key_ring.release_warp(key_at);
        key_at.advance();
      }
      shared.query_ring.release_warp(query_at);
      query_at.advance();
    }
    store_query_rows<Shape>(call, tile, row_in_block, sums);
    shared.tile_ring.release_warp(tile_at);
    tile_at.advance();
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    queries_backward_kernel(const __grid_constant__ QueriesCall call) {
  extern __shared__ std::uint8_t raw[];
  auto& shared = *reinterpret_cast<QueriesShared<Shape>*>(raw);
  const int tiles = call.order.tiles_per_head * call.order.heads;
  if (threadIdx.x == 0) {
    constexpr std::uint32_t kWarps = Shape::kConsumers * kWarpgroup / 32;
    shared.query_ring.init(1, kWarps);
    shared.key_ring.init(1, kWarps);
    shared.value_ring.init(1, kWarps);
    shared.tile_ring.init(1, kWarps);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    ptx::give_registers<Shape::kProducerRegisters>();
    if (threadIdx.x == 0) produce<Shape>(call, shared, tiles);
  } else {
    ptx::take_registers<Shape::kConsumerRegisters>();
    consume<Shape>(call, shared);
  }
}

}  // namespace headroom::cuda::sm90
