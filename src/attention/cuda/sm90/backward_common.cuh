// What both backward kernels for Hopper share: the share of keys a block works on, the queries it passes
// over, what it loads, and what runs before.
#pragma once

#include "attention/cuda/sm90/common.cuh"

namespace headroom::cuda::sm90 {

// A block's share of keys, and the query tiles it passes over for each head of its part of the group.
struct KeyTile {
  int batch;
  int head;        // of keys
  int part;        // of the group
  int query_head;  // the part's first
  int end_head;    // after its last
  int index;
  int places;  // none or less: past the end
  int query_tiles;
  // The range of query tiles, in the order of its visits, is `from` to `to`; from > to: downwards. It begins
  // with `start`, goes on to `to`, and then from `from` until it is back at `start`.
  int from;
  int to;
  int start;
  bool none;  // no work is left
};

// The query tile after m; the first one after the last.
__device__ __forceinline__ int query_tile_after(int m, int from, int to) {
  return m == to ? from : m + (from < to ? 1 : -1);
}

// Steps are numbered by query tile; in the general kernel by visit.
template <class Shape>
__device__ __forceinline__ int query_tile_of(const BackwardCall& call, int visit) {
  return Shape::kGeneral ? visit / call.visits.capacity : visit;
}

// The visits to a key tile, query tiles from its start on. Heads of the group take turns with a query tile,
// so that all blocks of a key head, with many queries or few, come to the next query tile at the same time
// and do not wait long for each other. Block lists are of one head each: head after head.
template <class Shape>
struct QuerySteps {
  int head;
  int visit;  // -1: none is left

  __device__ __forceinline__ QuerySteps(const BackwardCall& call, const KeyTile& tile)
      : head(tile.query_head), visit(tile.query_tiles > 0 ? tile.start : -1) {
    if (lists(call)) {
      visit = last_listed(call, tile);
      skip_heads(call, tile);
    }
  }
  __device__ __forceinline__ bool more() const { return visit >= 0; }
  __device__ __forceinline__ void advance(const BackwardCall& call, const KeyTile& tile) {
    if (lists(call)) {
      visit = call.visits.before[call.visits.offset(tile.batch * call.heads_q + head, visit)];
      skip_heads(call, tile);
    } else if (++head == tile.end_head) {
      head = tile.query_head;
      visit = query_tile_after(visit, tile.from, tile.to);
      if (visit == tile.start) visit = -1;
    }
  }

 private:
  __device__ __forceinline__ static bool lists(const BackwardCall& call) {
    return Shape::kGeneral && call.visits.counts != nullptr;
  }
  __device__ __forceinline__ int last_listed(const BackwardCall& call, const KeyTile& tile) const {
    const std::int64_t query_head = tile.batch * call.heads_q + head;
    return call.visits.last[query_head * call.visits.key_tiles + tile.index];
  }
  // To the first head from here on that has a visit.
  __device__ __forceinline__ void skip_heads(const BackwardCall& call, const KeyTile& tile) {
    while (visit < 0 && head + 1 < tile.end_head) {
      ++head;
      visit = last_listed(call, tile);
    }
  }
};

template <class Shape, class Body>
__device__ __forceinline__ void for_each_query_tile(const BackwardCall& call, const KeyTile& tile,
                                                    const Body& body) {
  if constexpr (Shape::kGeneral) {
    for (QuerySteps<Shape> steps(call, tile); steps.more();) {
      const int head = steps.head;
      const int visit = steps.visit;
      steps.advance(call, tile);  // reads, while the body works
      body(head, visit);
    }
  } else {
    // In registers: what is read between products waits for them.
    const int query_head = tile.query_head;
    const int heads = ptx::in_register(tile.end_head - query_head);
    const int from = tile.from;
    const int to = tile.to;
    int m = tile.start;
    int h = 0;
    for (int left = tile.query_tiles * heads; left > 0; --left) {
      body(query_head + h, m);
      if (++h < heads) continue;
      h = 0;
      m = query_tile_after(m, from, to);
    }
  }
}

template <class Shape>
__device__ __forceinline__ KeyTile key_tile(const BackwardCall& call, int index) {
  const TileIndex at = tile_at(call.order, index, call.heads_q / call.group * call.parts);
  const int first_key = at.tile * Shape::kKeys;
  KeyTile tile{
      .batch = at.batch, .head = at.head / call.parts, .part = at.head % call.parts, .index = at.tile};
  const int first_head = tile.head * call.group + call.group_begin;
  tile.query_head = first_head + tile.part * call.group_heads / call.parts;
  tile.end_head = first_head + (tile.part + 1) * call.group_heads / call.parts;
  tile.places = min(call.keys.count_of(at.batch, tile.query_head) - first_key, Shape::kKeys);
  if (tile.places <= 0) return tile;
  if constexpr (Shape::kGeneral) {
    if (call.visits.counts != nullptr) {
      tile.query_tiles = QuerySteps<Shape>(call, tile).more() ? 1 : 0;  // any or none: nobody asks how many
      return tile;
    }
  }
  // Intervals of queries rise with the key, so the first and the last key bound them all.
  const int begin = call.seen_by.of(at.batch, tile.query_head, first_key).begin / Shape::kQueries;
  const int end = call.seen_by.of(at.batch, tile.query_head, first_key + tile.places - 1).end;
  tile.query_tiles = max((end + Shape::kQueries - 1) / Shape::kQueries - begin, 0);
  const int last = begin + tile.query_tiles - 1;
  const bool rises = call.waves.rises(at.tile);
  tile.from = rises ? begin : last;
  tile.to = rises ? last : begin;
  // The last that ends a period, if there is one: blocks of neighbouring keys, which see different queries,
  // then come to a query tile at the same time, and it is read from memory once.
  const int aligned = (last + 1) / call.period * call.period - 1;
  tile.start = rises || aligned < begin ? tile.from : aligned;
  return tile;
}

// Queries that see a thread's two keys, none past the end of keys; and those that see all keys of its warp.
struct SeenBy {
  Range queries[2];
  Range every;

  SeenBy() = default;
  __device__ __forceinline__ SeenBy(const BackwardCall& call, const KeyTile& tile, int keys,
                                    int row_in_block) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int place = row_in_block + 8 * r;
      queries[r] = place < tile.places
                       ? call.seen_by.of(tile.batch, tile.query_head, tile.index * keys + place)
                       : Range{};
    }
    every = {__reduce_max_sync(0xFFFFFFFF, max(queries[0].begin, queries[1].begin)),
             __reduce_min_sync(0xFFFFFFFF, min(queries[0].end, queries[1].end))};
  }
};

// Scores of a thread's two keys with queries of tile m that do not see them. Compared one by one: as bits
// (keep_seen) a window of 1,024 took 2 % longer here, and heads of 64 in f16 have no register for them.
template <class Shape, int kScores>
__device__ __forceinline__ void hide_unseen(float (&scores)[kScores], const SeenBy& seen_by, int m,
                                            int first_column) {
  const int tile_begin = m * Shape::kQueries;
  if (tile_begin >= seen_by.every.begin && tile_begin + Shape::kQueries <= seen_by.every.end) return;
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int query = tile_begin + first_column + i / 4 * 8 + i % 2;
    const Range& seen = seen_by.queries[i % 4 / 2];
    if (query < seen.begin || query >= seen.end) scores[i] = -INFINITY;
  }
}

// Whether block lists hide a part of what a visit meets.
__device__ __forceinline__ bool listed_in_part(const BackwardCall& call, const KeyTile& tile, int head,
                                               int visit) {
  const Visits& visits = call.visits;
  if (visits.counts == nullptr) return false;
  return visits.entries[visits.offset(tile.batch * call.heads_q + head, visit)] % 2 == 0;
}

// Scores of a thread's two keys with queries that do not list them.
template <class Shape, int kScores>
__device__ __forceinline__ void hide_unlisted_queries(float (&scores)[kScores], const BackwardCall& call,
                                                      const KeyTile& tile, int head, int m,
                                                      int row_in_block) {
  const int begin = m * Shape::kQueries;
  const Range queries{begin, min(begin + Shape::kQueries, call.queries.count)};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int key = tile.index * Shape::kKeys + row_in_block + 8 * r;
    keep_listed(
        scores, r,
        call.visits.lists.queries_of(tile.batch * call.heads_q + head, key, queries, column_of_thread()));
  }
}

// Scores of a thread's two keys as they go into the exponential: capped, and -inf where a query does not see
// or list a key.
template <class Shape, int kScores>
__device__ __forceinline__ void shape_scores(float (&scores)[kScores], const BackwardCall& call,
                                             const KeyTile& tile, int head, int visit, const SeenBy& seen_by,
                                             int row_in_block, int first_column) {
  const int m = query_tile_of<Shape>(call, visit);
  if constexpr (Shape::kGeneral) {
    if (call.softcap > 0) cap_scores(scores, call.scale, call.softcap);
    if (listed_in_part(call, tile, head, visit)) {
      hide_unlisted_queries<Shape>(scores, call, tile, head, m, row_in_block);
    }
    // Made anew: there are no registers to keep it in.
    hide_unseen<Shape>(scores, SeenBy(call, tile, Shape::kKeys, row_in_block), m, first_column);
  } else {
    hide_unseen<Shape>(scores, seen_by, m, first_column);
  }
}

// A number of each of kQueries queries, those of a thread's columns. They are read before products are issued
// that they would have to wait for: both go through one queue to shared memory.
template <int kQueries>
struct Columns {
  float2 pair[kQueries / 8];

  __device__ __forceinline__ void read(const float* first) {
#pragma unroll
    for (int i = 0; i < kQueries / 8; ++i) pair[i] = *reinterpret_cast<const float2*>(first + 8 * i);
  }
  // That of register i of the scores.
  __device__ __forceinline__ float of(int i) const { return i % 2 == 0 ? pair[i / 4].x : pair[i / 4].y; }
};

// A thread's two rows of dK or dV.
template <class Shape>
__device__ __forceinline__ void store_key_rows(const BackwardCall& call, const KeyTile& tile,
                                               const HeadsView& rows, int row_in_block, float scale,
                                               const float (&sums)[Shape::kHeadDim / 2]) {
  if (tile.query_tiles == 0 && call.key_rows == Write::added) return;
  write_rows<typename Shape::Element, Shape::kHeadDim>(
      rows, call.key_rows, tile.part * call.batch + tile.batch, tile.head,
      RowEnds::of(call.keys, tile.batch, tile.query_head, tile.index * Shape::kKeys, tile.places,
                  row_in_block, scale),
      sums, call.head_dim);
}

// ---- the thread that loads

// The first queries that see a block's keys, with the gradients of their outputs; the keys and values; then
// the other queries.
template <class Shape, class Shared>
__device__ void load_tiles(const BackwardCall& call, Shared& shared) {
  RingPosition<1> key_at;
  RingPosition<Shape::kStages> query_at;
  RingPosition<Shape::kStages> gradient_at;
  for (TilePosition tile_at; shared.tiles.wait(tile_at); shared.tiles.pass(tile_at)) {
    const KeyTile& tile = shared.tiles[tile_at];
    // The first queries need not wait for the end of the tile before, as keys do.
    bool keys_are_due = true;
    const auto load_keys = [&] {
      const HeadPlaces keys(call.keys, tile.batch, tile.query_head);
      std::uint64_t& full = shared.key_ring.wait_to_load(key_at, sizeof(shared.key) + sizeof(shared.value));
      load_rows<Shape::kKeys, Shape::kColumns>(shared.key, call.key, full, keys, tile.index * Shape::kKeys,
                                               tile.head, tile.batch);
      load_rows<Shape::kKeys, Shape::kColumns>(shared.value, call.value, full, keys,
                                               tile.index * Shape::kKeys, tile.head, tile.batch);
      key_at.advance();
      keys_are_due = false;
    };
    for_each_query_tile<Shape>(call, tile, [&](int head, int visit) {
      const int place = query_tile_of<Shape>(call, visit) * Shape::kQueries;
      const std::int64_t statistics =
          (static_cast<std::int64_t>(tile.batch) * call.heads_q + head) * call.padded_places + place;
      const HeadPlaces places(call.queries, tile.batch, head);
      // Rows, and a number for each.
      const auto load_queries = [&](auto& ring, auto at, auto& to, const CUtensorMap& map, auto& numbers,
                                    const float* from) {
        std::uint64_t& full = ring.wait_to_load(at, sizeof(to[0]) + sizeof(numbers[0]));
        load_rows<Shape::kQueries, Shape::kColumns>(to[at.stage()], map, full, places, place, head,
                                                    tile.batch);
        ptx::bulk_load(numbers[at.stage()], from + statistics, sizeof(numbers[0]), full);
      };
      load_queries(shared.query_ring, query_at, shared.query, call.query, shared.lse, call.lse);
      load_queries(shared.gradient_ring, gradient_at, shared.output_gradient, call.output_gradient,
                   shared.minus_delta, call.minus_delta);
      query_at.advance();
      gradient_at.advance();
      if (keys_are_due) load_keys();
    });
    shared.tiles.request_next();
  }
}

// ---- before

// Threads for each row of a head. Each of them reads eight columns.
inline constexpr int before_threads(int head_dim) {
  return head_dim <= 64 ? 8 : head_dim <= 128 ? 16 : 32;
}

// delta = sum of O dO, less what the log-sum-exp's own gradient adds. It is stored as it is added to dP.
template <class Element, int kThreads>
__global__ void before_backward_kernel(const BeforeCall call) {
  ptx::let_next_kernel_begin();
  ptx::wait_for_kernels_before();
  // 32 bits, as the launch checks: 64-bit divisions take longer than the memory.
  const std::uint32_t index = blockIdx.x * (blockDim.x / kThreads) + threadIdx.x / kThreads;
  const int lane = static_cast<int>(threadIdx.x) % kThreads;
  const unsigned others = (kThreads == 32 ? 0xFFFFFFFF : (1u << kThreads % 32) - 1)
                          << (threadIdx.x % 32 / kThreads * kThreads);
  const auto heads = static_cast<std::uint32_t>(call.heads);
  const auto places = static_cast<std::uint32_t>(call.padded_places);
  const std::uint32_t rest = index / heads;
  const int head = static_cast<int>(index - rest * heads);
  const int batch = static_cast<int>(rest / places);
  if (batch >= call.batch) return;
  const int place = static_cast<int>(rest - static_cast<std::uint32_t>(batch) * places);
  const std::int64_t to = (static_cast<std::int64_t>(batch) * call.heads + head) * call.padded_places + place;
  if (place >= call.queries.count_of(batch, head)) {
    if (lane == 0) {
      call.lse_log2[to] = INFINITY;
      call.minus_delta[to] = 0;
    }
    return;
  }
  const int row = call.queries.row(batch, head, place);
  const std::int64_t from = (static_cast<std::int64_t>(batch) * call.heads + head) * call.rows + row;
  const float lse = lane == 0 ? call.lse[from] : 0;  // read here, so that it arrives with the rows
  float sum = 0;
  const int column = lane * 8;
  if (column < call.head_dim) {
    const uint4 b = *reinterpret_cast<const uint4*>(
        call.output_gradient.template row<Element>(batch, head, row) + column);
    const auto* y = reinterpret_cast<const Element*>(&b);
    const auto multiply = [&](const auto* x) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = fmaf(static_cast<float>(x[i]), static_cast<float>(y[i]), sum);
    };
    if (call.output_is_f32) {
      multiply(call.output.template row<float>(batch, head, row) + column);
    } else {
      const uint4 a =
          *reinterpret_cast<const uint4*>(call.output.template row<Element>(batch, head, row) + column);
      multiply(reinterpret_cast<const Element*>(&a));
    }
  }
#pragma unroll
  for (int step = kThreads / 2; step > 0; step /= 2) sum += __shfl_xor_sync(others, sum, step);
  if (lane != 0) return;
  call.lse_log2[to] = lse == -INFINITY ? INFINITY : lse * kLog2E;
  call.minus_delta[to] = call.lse_gradient == nullptr ? -sum : call.lse_gradient[from] - sum;
}

}  // namespace headroom::cuda::sm90
