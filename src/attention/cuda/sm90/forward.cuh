// Attention forward on Hopper. A block keeps its share of query rows and takes key tiles one after the other:
// one warp loads (producer), warpgroups of 64 rows multiply and exponentiate (consumers). While a consumer's
// scores for one key tile are exponentiated, the tensor cores work on another consumer's products, and on its
// own next scores.
#pragma once

#include "attention/cuda/row_softmax.h"
#include "attention/cuda/sm90/common.cuh"
#include "attention/cuda/sm90/tiles.h"
#include "attention/cuda/softmax.cuh"
#include "cuda/pipeline.h"

namespace headroom::cuda::sm90 {

template <class ElementType, int kHead, bool kOfGeneral>
struct ForwardShape {
  using Element = ElementType;
  static constexpr ForwardTile kTile = forward_tile(kHead, kOfGeneral);
  static constexpr bool kGeneral = kOfGeneral;
  static constexpr int kHeadDim = kHead;
  static constexpr int kColumns = pad_columns(kHead);
  static constexpr int kConsumers = kTile.consumers;
  static constexpr int kRows = 64 * kConsumers;
  static constexpr int kKeys = kTile.keys;
  static constexpr int kStages = kTile.stages;
  // The next tile's queries arrive before this one's are done with, where shared memory has the room.
  static constexpr int kQueryStages = kHead <= 128 ? 2 : 1;
  static constexpr int kThreads = kWarpgroup * (kConsumers + 1);
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 232 : 160;
  static constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 32;
};

// A block's share of queries and the key tiles it passes over, last to first.
struct QueryTile {
  int batch;
  int head;
  int first_place;
  int places;  // none or less: past the end
  int first_key;
  int key_tiles;
  bool none;  // no work is left
};

template <class Shape>
struct alignas(1024) ForwardShared {
  using Element = typename Shape::Element;
  alignas(1024) Element query[Shape::kQueryStages][Shape::kRows * Shape::kColumns];
  alignas(1024) Element key[Shape::kStages][Shape::kKeys * Shape::kColumns];
  alignas(1024) Element value[Shape::kStages][Shape::kKeys * Shape::kColumns];
  Ring<Shape::kQueryStages> query_ring;
  Ring<Shape::kStages> key_ring;
  Ring<Shape::kStages> value_ring;
  Ring<2> tile_ring;
  QueryTile tile[2];
  std::uint32_t never_written;
};

// The n-th key tile of a query tile: n; in the general kernel an entry of visits, twice the tile and whether
// lists leave it whole.
template <class Shape, class Call>
__device__ __forceinline__ int key_entry(const Call& call, const QueryTile& tile, int n) {
  if constexpr (Shape::kGeneral) {
    const Visits& visits = call.visits;
    if (visits.counts == nullptr) return 2 * n + 1;
    const int head = tile.batch * call.heads_q + tile.head;
    return visits.entries[visits.tile(head, tile.first_place / Shape::kRows) * visits.capacity + n];
  }
  return n;
}

// Where it begins, counted from the query tile's first key.
template <class Shape>
__device__ __forceinline__ int key_begin(int entry) {
  return (Shape::kGeneral ? entry / 2 : entry) * Shape::kKeys;
}

// Scores of a thread's two rows with keys that they do not list.
template <class Shape, class Call, int kScores>
__device__ __forceinline__ void hide_unlisted_keys(float (&scores)[kScores], const Call& call,
                                                   const QueryTile& tile, int tile_begin, int row_in_block) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = tile.first_place + min(row_in_block + 8 * r, tile.places - 1);
    hide_unlisted(scores, r,
                  call.visits.lists.keys_of(tile.batch * call.heads_q + tile.head, row,
                                            {tile_begin, tile_begin + Shape::kKeys},
                                            static_cast<int>(threadIdx.x) % 4 * 2));
  }
}

template <class Shape, class Call>
__device__ QueryTile query_tile(const Call& call, int index) {
  const TileIndex at = tile_at(call.order, index, call.heads_q);
  QueryTile tile;
  tile.none = false;
  tile.batch = at.batch;
  tile.head = at.head;
  const int index_in_head = call.order.tiles_per_head - 1 - at.tile;
  const int count = call.queries.count_of(at.batch, at.head);
  if constexpr (Shape::kGeneral) {
    tile.first_place = index_in_head * Shape::kRows;
    tile.places = min(count - tile.first_place, Shape::kRows);
  } else {
    // Shares of 64 rows are dealt out evenly: a last tile with one consumer would take as long as the others.
    const int shares = (count + 63) / 64;
    const int least = shares / call.order.tiles_per_head;
    const int more = shares - least * call.order.tiles_per_head;  // tiles that have one more
    tile.first_place = 64 * (index_in_head * least + min(index_in_head, more));
    tile.places = min(count - tile.first_place, 64 * (least + (index_in_head < more ? 1 : 0)));
  }
  tile.first_key = 0;
  tile.key_tiles = 0;
  if (tile.places <= 0) return tile;
  if constexpr (Shape::kGeneral) {
    if (call.visits.counts != nullptr) {
      const int head = at.batch * call.heads_q + at.head;
      tile.key_tiles = call.visits.counts[call.visits.tile(head, tile.first_place / Shape::kRows)];
      return tile;
    }
  }
  // Intervals of keys rise with the query, so the first and the last place bound them all.
  const int end = call.seen.of(tile.batch, tile.head, tile.first_place + tile.places - 1).end;
  tile.first_key = call.seen.of(tile.batch, tile.head, tile.first_place).begin;
  tile.key_tiles = max(end - tile.first_key + Shape::kKeys - 1, 0) / Shape::kKeys;
  return tile;
}

// ---- producer

template <class Shape>
__device__ void produce(const ForwardCall& call, ForwardShared<Shape>& shared, int tiles) {
  constexpr std::uint32_t kTileBytes = sizeof(shared.key[0]);
  RingPosition<Shape::kQueryStages> query_at;
  RingPosition<2> tile_at;
  RingPosition<Shape::kStages> key_at;
  RingPosition<Shape::kStages> value_at;
  for (int index = static_cast<int>(blockIdx.x);;
       index = static_cast<int>(gridDim.x) + atomicAdd(call.next_tile, 1)) {
    shared.tile_ring.wait_empty(tile_at);
    QueryTile& tile = shared.tile[tile_at.stage()];  // read from there: registers are short
    tile = index < tiles ? query_tile<Shape>(call, index) : QueryTile{.none = true};
    shared.tile_ring.publish(tile_at);
    tile_at.advance();
    if (tile.none) return;
    if (tile.key_tiles == 0) continue;
    const auto load_key = [&](int n) {
      shared.key_ring.wait_empty(key_at);
      std::uint64_t& full = shared.key_ring.full[key_at.stage()];
      ptx::mbarrier_arrive_expect(full, kTileBytes);
      load_rows<Shape::kKeys, Shape::kColumns>(
          shared.key[key_at.stage()], call.key, full, call.keys, tile.head,
          tile.first_key + key_begin<Shape>(key_entry<Shape>(call, tile, n)), tile.head / call.group,
          tile.batch);
      key_at.advance();
    };
    const auto load_value = [&](int n) {
      shared.value_ring.wait_empty(value_at);
      std::uint64_t& full = shared.value_ring.full[value_at.stage()];
      ptx::mbarrier_arrive_expect(full, kTileBytes);
      load_rows<Shape::kKeys, Shape::kColumns>(
          shared.value[value_at.stage()], call.value, full, call.keys, tile.head,
          tile.first_key + key_begin<Shape>(key_entry<Shape>(call, tile, n)), tile.head / call.group,
          tile.batch);
      value_at.advance();
    };

    shared.query_ring.wait_empty(query_at);
    std::uint64_t& query_full = shared.query_ring.full[query_at.stage()];
    ptx::mbarrier_arrive_expect(query_full, sizeof(shared.query[0]));
    load_rows<Shape::kRows, Shape::kColumns>(shared.query[query_at.stage()], call.query, query_full,
                                             call.queries, tile.head, tile.first_place, tile.head,
                                             tile.batch);
    query_at.advance();
    load_key(tile.key_tiles - 1);
    for (int n = tile.key_tiles - 2; n >= 0; --n) {
      load_key(n);
      load_value(n + 1);
    }
    load_value(0);
  }
}

// ---- consumers

// Consumers issue their products one after the other, so that one multiplies while another exponentiates.
template <class Shape>
struct IssueOrder {
  static constexpr int kFirstBarrier = 1;
  int consumer;

  __device__ __forceinline__ void begin() const {
    // The first consumer is the first to issue: the last one lets it.
    if (consumer == Shape::kConsumers - 1) ptx::named_barrier_arrive(kFirstBarrier, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void wait() const {
    ptx::named_barrier_sync(kFirstBarrier + consumer, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void pass() const {
    const int next = consumer + 1 == Shape::kConsumers ? 0 : consumer + 1;
    ptx::named_barrier_arrive(kFirstBarrier + next, 2 * kWarpgroup);
  }
};

// S = Q K^T of 64 rows.
template <class Shape>
__device__ __forceinline__ void multiply_scores(float (&scores)[Shape::kKeys / 2],
                                                const typename Shape::Element* query,
                                                const typename Shape::Element* key) {
  const auto a = ptx::MatrixDescriptor::of(query);
  const auto b = ptx::MatrixDescriptor::of(key);
#pragma unroll
  for (int k = 0; k < Shape::kHeadDim; k += 16) {
    const int tile = k / kTileColumns;
    const int within = k % kTileColumns;
    ptx::wgmma<typename Shape::Element, Shape::kKeys, ptx::Major::inner, ptx::Major::inner>(
        scores, a + (tile * kTileColumns * Shape::kRows + within),
        b + (tile * kTileColumns * Shape::kKeys + within), k != 0);
  }
}

// O += P V of 64 rows, P in registers.
template <class Shape>
__device__ __forceinline__ void multiply_values(float (&output)[Shape::kHeadDim / 2],
                                                const std::uint32_t (&probabilities)[Shape::kKeys / 4],
                                                const typename Shape::Element* value) {
  const auto b = ptx::MatrixDescriptor::of(value, Shape::kKeys * kTileColumns * 2);
#pragma unroll
  for (int k = 0; k < Shape::kKeys; k += 16) {
    ptx::wgmma<typename Shape::Element, Shape::kHeadDim, ptx::Major::outer>(output, probabilities + k / 4,
                                                                            b + k * kTileColumns, true);
  }
}

// Finish: the rows' sums, the share of a sink or of what they resume from, then out.
template <class Shape>
__device__ __forceinline__ void finish(const ForwardCall& call, const QueryTile& tile, int row_in_block,
                                       const Softmax& softmax, float (&output)[Shape::kHeadDim / 2]) {
  using Element = typename Shape::Element;
  const std::int64_t statistics =
      (static_cast<std::int64_t>(tile.batch) * call.heads_q + tile.head) * call.rows;
  int row[2];
  RowSoftmax other[2];  // what else the softmax holds: a sink, or all that earlier patterns and chunks saw
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool inside = row_in_block + 8 * r < tile.places;
    row[r] = inside ? call.queries.row(tile.batch, tile.head, tile.first_place + row_in_block + 8 * r) : -1;
    other[r] = {-INFINITY, 0};
    if (call.resume) {
      if (inside) other[r] = RowSoftmax::load(call, statistics + row[r]);
    } else if (call.sinks != nullptr) {
      other[r] = {call.sinks[tile.head] * kLog2E, 1};
    }
  }
  __syncwarp();  // the rows' four threads have read their statistics
  float factor[2];
  float keep_before[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = softmax.sum[r];
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
    const float base = fmaxf(softmax.maximum[r], other[r].base);
    const float keep = base == -INFINITY ? 0 : ptx::exp2_approximate(softmax.maximum[r] - base);
    const float share = base == -INFINITY ? 0 : ptx::exp2_approximate(other[r].base - base);
    const RowSoftmax all{base, static_cast<double>(sum) * static_cast<double>(keep) +
                                   static_cast<double>(share) * other[r].sum};
    float inverse = 1;  // a row that stays open is not divided
    if (call.row_sum == nullptr) inverse = all.sum > 0 ? __fdividef(1, static_cast<float>(all.sum)) : 0;
    factor[r] = keep * inverse;
    keep_before[r] = call.resume ? share * inverse : 0;
    if (row[r] >= 0 && threadIdx.x % 4 == 0) all.store(call, statistics + row[r]);
  }
  if (call.output_is_f32) {
    float* to[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      to[r] = row[r] < 0 ? nullptr : call.output.template row<float>(tile.batch, tile.head, row[r]);
    }
    store_wide_rows<Shape::kHeadDim>(output, factor, to, keep_before, call.head_dim);
    return;
  }
  Element* to[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    to[r] = row[r] < 0 ? nullptr : call.output.template row<Element>(tile.batch, tile.head, row[r]);
  }
  store_rows<Element, Shape::kHeadDim>(output, factor, to, call.head_dim);
}

// Of a tile's key tiles, as many as a consumer's rows see; one at least.
template <class Shape>
__device__ __forceinline__ int own_key_tiles(const ForwardCall& call, const QueryTile& tile, int consumer) {
  const int last = min(consumer * 64 + 63, tile.places - 1);
  if (last < consumer * 64) return 1;
  const int end = call.seen.of(tile.batch, tile.head, tile.first_place + last).end - tile.first_key;
  return max((end + Shape::kKeys - 1) / Shape::kKeys, 1);
}

template <class Shape>
__device__ void consume(const ForwardCall& call, ForwardShared<Shape>& shared) {
  using Element = typename Shape::Element;
  const int consumer =
      __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / kWarpgroup, 0) - 1;  // uniform, and known so
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int row_in_block = consumer * 64 + thread / 32 * 16 + thread % 32 / 4;
  const IssueOrder<Shape> issue{consumer};
  const float scale_log2 = (Shape::kGeneral && call.softcap > 0 ? call.softcap : call.scale) * kLog2E;
  RingPosition<Shape::kQueryStages> query_at;
  RingPosition<2> tile_at;
  RingPosition<Shape::kStages> key_at;
  RingPosition<Shape::kStages> value_at;
  issue.begin();

  while (true) {
    shared.tile_ring.wait_full(tile_at);
    const QueryTile& tile = shared.tile[tile_at.stage()];  // stays there until the end: registers are short
    if (tile.none) break;

    float output[Shape::kHeadDim / 2] = {};
    Softmax softmax;

    if (tile.key_tiles > 0) {
      // Keys a query sees, counted from the first key of the first tile. Those past the end see what the last
      // one sees.
      int first_key[2];
      int last_key[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int place = tile.first_place + min(row_in_block + 8 * r, tile.places - 1);
        const Range range = call.seen.of(tile.batch, tile.head, place);
        first_key[r] = range.begin - tile.first_key;
        last_key[r] = range.end - tile.first_key;
      }
      const int every_key_from = __reduce_max_sync(0xFFFFFFFF, max(first_key[0], first_key[1]));
      const int every_key_to = __reduce_min_sync(0xFFFFFFFF, min(last_key[0], last_key[1]));
      const auto shape_scores = [&](float(&scores)[Shape::kKeys / 2], int entry) {
        const int tile_begin = key_begin<Shape>(entry);
        if constexpr (Shape::kGeneral) {
          if (call.softcap > 0) cap_scores(scores, call.scale, call.softcap);
          if (entry % 2 == 0) hide_unlisted_keys<Shape>(scores, call, tile, tile_begin, row_in_block);
        }
        if (tile_begin >= every_key_from && tile_begin + Shape::kKeys <= every_key_to) return;
        const int column = tile_begin + thread % 4 * 2;
#pragma unroll
        for (int i = 0; i < Shape::kKeys / 2; ++i) {
          const int key = column + i / 4 * 8 + i % 2;
          const int r = i % 4 / 2;
          if (key < first_key[r] || key >= last_key[r]) scores[i] = -INFINITY;
        }
      };

      float scores[Shape::kKeys / 2];
      float factor[2];
      std::uint32_t probabilities[Shape::kKeys / 4];
      const auto pack_probabilities = [&] {
#pragma unroll
        for (int i = 0; i < Shape::kKeys / 4; ++i)
          probabilities[i] = ptx::pack<Element>(scores[2 * i], scores[2 * i + 1]);
      };

      int n = tile.key_tiles - 1;
      if constexpr (!Shape::kGeneral) {
        // Tiles past the end of what this consumer's rows see are for the others.
        for (const int own = own_key_tiles<Shape>(call, tile, consumer); n >= own; --n) {
          shared.key_ring.wait_full(key_at);
          shared.key_ring.release_warp(key_at);
          key_at.advance();
          issue.wait();
          issue.pass();
          shared.value_ring.wait_full(value_at);
          shared.value_ring.release_warp(value_at);
          value_at.advance();
        }
      }

      const Element* query = shared.query[query_at.stage()] + consumer * 64 * kTileColumns;
      shared.query_ring.wait_full(query_at);
      shared.key_ring.wait_full(key_at);
      ptx::wgmma_fence();
      multiply_scores<Shape>(scores, query, shared.key[key_at.stage()]);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(scores);
      shared.key_ring.release_warp(key_at);
      key_at.advance();
      shape_scores(scores, key_entry<Shape>(call, tile, n));
      softmax.add(scores, scale_log2, factor);
      pack_probabilities();

      for (--n; n >= 0; --n) {
        const int entry = key_entry<Shape>(call, tile, n);
        shared.key_ring.wait_full(key_at);
        issue.wait();
        ptx::wgmma_fence();
        multiply_scores<Shape>(scores, query, shared.key[key_at.stage()]);
        ptx::wgmma_commit();
        shared.value_ring.wait_full(value_at);
        ptx::wgmma_fence();
        multiply_values<Shape>(output, probabilities, shared.value[value_at.stage()]);
        ptx::wgmma_commit();
        issue.pass();
        ptx::wgmma_wait<1>();
        ptx::wgmma_pin(scores);
        shared.key_ring.release_warp(key_at);
        key_at.advance();
        shape_scores(scores, entry);
        const bool rescale = softmax.add(scores, scale_log2, factor);
        ptx::finish_first((__float_as_uint(softmax.sum[0]) | __float_as_uint(softmax.sum[1])) >> 31,
                          &shared.never_written);
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(output);
        shared.value_ring.release_warp(value_at);
        value_at.advance();
        pack_probabilities();
        if (rescale) {
#pragma unroll
          for (int i = 0; i < Shape::kHeadDim / 2; ++i) output[i] *= factor[i % 4 / 2];
        }
      }

      shared.query_ring.release_warp(query_at);
      query_at.advance();
      shared.value_ring.wait_full(value_at);
      ptx::wgmma_fence();
      multiply_values<Shape>(output, probabilities, shared.value[value_at.stage()]);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(output);
      shared.value_ring.release_warp(value_at);
      value_at.advance();
    }

    finish<Shape>(call, tile, row_in_block, softmax, output);
    shared.tile_ring.release_warp(tile_at);
    tile_at.advance();
  }
  // What was passed last is waited for, so that barriers end as they began.
  if (consumer == 0) issue.wait();
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    forward_kernel(const __grid_constant__ ForwardCall call) {
  extern __shared__ std::uint8_t raw[];
  auto& shared = *reinterpret_cast<ForwardShared<Shape>*>(raw);
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
