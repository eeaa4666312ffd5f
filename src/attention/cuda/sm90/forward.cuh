// Attention forward on Hopper. A block keeps its share of query rows and takes key tiles one after the other:
// one warp loads and another hands out tiles (producer), warpgroups of 64 rows multiply and exponentiate
// (consumers). While a consumer's scores for one key tile are exponentiated, the tensor cores work on another
// consumer's products, and on its own next scores.
#pragma once

#include <type_traits>

#include "attention/cuda/row_softmax.h"
#include "attention/cuda/sm90/common.cuh"
#include "attention/cuda/softmax.cuh"
#include "cuda/ptx/global.h"

namespace headroom::cuda::sm90 {

// Of a query tile's key tiles, those that a consumer's rows see, one at least; and those that all of them see
// whole.
struct OwnKeyTiles {
  Range seen;
  Range whole;
};

// A block's share of queries and the key tiles it passes over, last to first.
struct QueryTile {
  static constexpr int kMostConsumers = 3;

  int batch;
  int head;
  int key_head;
  int first_place;
  int places;  // none or less: past the end
  int first_key;
  int key_tiles;
  OwnKeyTiles own[kMostConsumers];  // where the shape has them
  bool none;                        // no work is left
};

template <class ElementType, int kHead, bool kOfGeneral>
struct ForwardShape
    : KernelShape<ElementType, kHead, kOfGeneral, head_tiles(kHead, kOfGeneral).forward.consumers> {
  static constexpr const char* kName = "forward_kernel";
  static constexpr ForwardTile kTile = head_tiles(kHead, kOfGeneral).forward;
  static constexpr int kRows = kTile.rows();
  static constexpr int kKeys = kTile.keys;
  static constexpr int kStages = kTile.stages;
  static constexpr int kQueryStages = kTile.query_stages;
  // Rows are dealt out to tiles in shares of 64, and consumers leave what their rows do not see to others.
  static constexpr bool kOwnKeyTiles = !kOfGeneral;
  static_assert(kTile.consumers <= QueryTile::kMostConsumers);
};

// Consumers issue their products one after the other, so that one multiplies while another exponentiates.
// There is a named barrier for each consumer; 0 is that of the whole block.
enum IssueBarrier : int { kIssue = 1 };

template <class Shape>
struct IssueOrder {
  int consumer;

  __device__ __forceinline__ void begin() const {
    // The first consumer is the first to issue: the last one lets it.
    if (consumer == Shape::kConsumers - 1) pass();
  }
  __device__ __forceinline__ void wait() const { ptx::named_barrier_sync(kIssue + consumer, 2 * kWarpgroup); }
  __device__ __forceinline__ void pass() const {
    const int next = consumer + 1 == Shape::kConsumers ? 0 : consumer + 1;
    ptx::named_barrier_arrive(kIssue + next, 2 * kWarpgroup);
  }
  // What was passed last is waited for, so that barriers end as they began.
  __device__ __forceinline__ void end() const {
    if (consumer == 0) wait();
  }
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
  Tiles<QueryTile> tiles;
  std::uint32_t never_written;

  __device__ __forceinline__ void init() {
    init_rings(1, Shape::kConsumerWarps, query_ring, key_ring, value_ring);
    tiles.init(Shape::kConsumerWarps + 1);
  }
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
    keep_listed(scores, r,
                call.visits.lists.keys_of(tile.batch * call.heads_q + tile.head, row,
                                          {tile_begin, tile_begin + Shape::kKeys}, column_of_thread()));
  }
}

template <class Shape, class Call>
__device__ QueryTile query_tile(const Call& call, int index) {
  const TileIndex at = tile_at(call.order, index, call.heads_q);
  QueryTile tile;
  tile.batch = at.batch;
  tile.head = at.head;
  tile.key_head = at.head / call.group;
  const int index_in_head = call.order.tiles_per_head - 1 - at.tile;
  const int count = call.queries.count_of(at.batch, at.head);
  if constexpr (!Shape::kOwnKeyTiles) {
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

// Intervals rise with the query, so a consumer's first and last row bound those between. A consumer without
// rows takes one tile, as all take part in the barriers.
template <class Shape>
__device__ __forceinline__ OwnKeyTiles own_key_tiles(const ForwardCall& call, const QueryTile& tile,
                                                     int consumer) {
  const auto seen_by_row = [&](int row) {
    return call.seen.of(tile.batch, tile.head, tile.first_place + min(row, tile.places - 1));
  };
  // Tiles that end at a key or before it; and those that begin before it.
  const auto tiles_before = [&](int key) { return max(key - tile.first_key, 0) / Shape::kKeys; };
  const auto tiles_up_to = [&](int key) { return tiles_before(key + Shape::kKeys - 1); };
  const Range first = seen_by_row(64 * consumer);
  const Range last = seen_by_row(64 * consumer + 63);
  const int end = 64 * consumer < tile.places ? max(tiles_up_to(last.end), 1) : 1;
  return {.seen = {min(tiles_before(first.begin), end - 1), end},
          .whole = {tiles_up_to(last.begin), tiles_before(first.end)}};
}

// ---- producer

// The next tile is requested when so many key tiles of this one are still to be loaded; four are no faster.
inline constexpr int kRequestedAhead = 2;

// The statistics that a tile's rows resume from, into the L2, so that the epilogue does not wait for memory:
// a line has 16 rows or more. Rows of a list are left out: its numbers would have to be read first.
__device__ __forceinline__ void prefetch_resumed(const ForwardCall& call, const QueryTile& tile) {
  if (!call.resume || call.queries.rows != nullptr) return;
  const int row = call.queries.row(tile.batch, tile.head, tile.first_place);
  std::int64_t at = (static_cast<std::int64_t>(tile.batch) * call.heads_q + tile.head) * call.rows + row;
  for (int i = 0; i < tile.places; i += 16, at += 16 * call.queries.rate) {
    ptx::prefetch_line(call.lse + at);
    if (call.row_sum != nullptr) ptx::prefetch_line(call.row_sum + at);
  }
}

template <class Shape>
__device__ __forceinline__ void describe(const ForwardCall& call, QueryTile& to, int index) {
  const QueryTile tile = query_tile<Shape>(call, index);
  to = tile;
  if (Shape::kOwnKeyTiles && tile.key_tiles > 0) {
#pragma unroll
    for (int i = 0; i < Shape::kConsumers; ++i) to.own[i] = own_key_tiles<Shape>(call, tile, i);
  }
}

template <class Shape>
__device__ void load(const ForwardCall& call, ForwardShared<Shape>& shared) {
  RingPosition<Shape::kQueryStages> query_at;
  RingPosition<Shape::kStages> key_at;
  RingPosition<Shape::kStages> value_at;
  for (TilePosition tile_at; shared.tiles.wait(tile_at); shared.tiles.pass(tile_at)) {
    const QueryTile& tile = shared.tiles[tile_at];
    const HeadPlaces keys(call.keys, tile.batch, tile.head);
    const auto load_keys = [&](auto& ring, auto& at, auto& to, const CUtensorMap& map, int n) {
      std::uint64_t& full = ring.wait_to_load(at, sizeof(to[0]));
      // Read after the wait: what is kept in registers over it costs 1 % (16,384 causal tokens).
      const int place = tile.first_key + key_begin<Shape>(key_entry<Shape>(call, tile, n));
      load_rows<Shape::kKeys, Shape::kColumns>(to[at.stage()], map, full, keys, place, tile.key_head,
                                               tile.batch);
      at.advance();
    };
    const int last = tile.key_tiles - 1;
    if (last >= 0) {
      std::uint64_t& full = shared.query_ring.wait_to_load(query_at, sizeof(shared.query[0]));
      load_rows<Shape::kRows, Shape::kColumns>(shared.query[query_at.stage()], call.query, full,
                                               HeadPlaces(call.queries, tile.batch, tile.head),
                                               tile.first_place, tile.head, tile.batch);
      query_at.advance();
    } else {
      shared.tiles.request_next();
    }
    for (int n = last; n >= 0; --n) {
      load_keys(shared.key_ring, key_at, shared.key, call.key, n);
      if (n == min(last, kRequestedAhead)) shared.tiles.request_next();
      if (n < last) load_keys(shared.value_ring, value_at, shared.value, call.value, n + 1);
    }
    prefetch_resumed(call, tile);
    if (last >= 0) load_keys(shared.value_ring, value_at, shared.value, call.value, 0);
  }
}

// ---- consumers

// The rows' sums, with the share of a sink or of what they resume from.
template <class Sum>
__device__ __forceinline__ RowEnds end_rows(const ForwardCall& call, const QueryTile& tile, int row_in_block,
                                            const Softmax& softmax) {
  constexpr bool kResumes = std::is_same_v<Sum, double>;  // only f32 rows are resumed and stay open
  const std::int64_t statistics =
      (static_cast<std::int64_t>(tile.batch) * call.heads_q + tile.head) * call.rows;
  RowEnds ends;
  float lse[2];
  Sum row_sum[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {  // every read is issued before any is used
    const int place = tile.first_place + row_in_block + 8 * r;
    const bool inside = row_in_block + 8 * r < tile.places;
    const int row = ends.row[r] = inside ? call.queries.row(tile.batch, tile.head, place) : -1;
    const bool resumes = kResumes && call.resume && inside;
    lse[r] = resumes ? call.lse[statistics + row] : -INFINITY;
    row_sum[r] = resumes && call.row_sum != nullptr ? static_cast<Sum>(call.row_sum[statistics + row]) : 0;
  }
  // What else the softmax holds: a sink, or all that earlier patterns and chunks saw.
  RowSoftmaxOf<Sum> other[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    other[r] = RowSoftmaxOf<Sum>::of(lse[r], row_sum[r]);
    if (!call.resume && call.sinks != nullptr) other[r] = {call.sinks[tile.head] * kLog2E, 1};
  }
  if (kResumes) __syncwarp();  // the rows' four threads have read their statistics
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = softmax.sum[r];
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
    // What is there keeps its base, and is not read, unless this tile's maximum exceeds it by too much.
    const float base = softmax.maximum[r] <= other[r].base + Softmax::kSlack
                           ? other[r].base
                           : fmaxf(softmax.maximum[r], other[r].base);
    const float keep = base == -INFINITY ? 0 : ptx::exp2_approximate(softmax.maximum[r] - base);
    const float share = base == -INFINITY ? 0 : ptx::exp2_approximate(other[r].base - base);
    const RowSoftmaxOf<Sum> all{
        base, static_cast<Sum>(sum) * static_cast<Sum>(keep) + static_cast<Sum>(share) * other[r].sum};
    float inverse = 1;  // a row that stays open is not divided
    if (call.row_sum == nullptr) inverse = all.sum > 0 ? __fdividef(1, static_cast<float>(all.sum)) : 0;
    ends.factor[r] = keep * inverse;
    ends.keep_before[r] = call.resume ? share * inverse : 0;
    if (ends.row[r] >= 0 && threadIdx.x % 4 == 0) all.store(call, statistics + ends.row[r]);
  }
  return ends;
}

__device__ __forceinline__ RowEnds end_rows(const ForwardCall& call, const QueryTile& tile, int row_in_block,
                                            const Softmax& softmax) {
  if (call.output_is_f32) [[unlikely]]
    return end_rows<double>(call, tile, row_in_block, softmax);
  return end_rows<float>(call, tile, row_in_block, softmax);
}

// Finish: the rows' outputs.
template <class Shape>
__device__ __forceinline__ void finish(const ForwardCall& call, const QueryTile& tile, const RowEnds& ends,
                                       float (&output)[Shape::kHeadDim / 2]) {
  Write write = Write::rounded;
  if (call.output_is_f32) [[unlikely]] {
    const auto kept = [&](int r) { return ends.row[r] < 0 || ends.keep_before[r] == 1; };
    write = __all_sync(0xFFFFFFFF, kept(0) && kept(1)) ? Write::added : Write::f32;
  }
  write_rows<typename Shape::Element, Shape::kHeadDim>(call.output, write, tile.batch, tile.head, ends,
                                                       output, call.head_dim);
}

// Keys that a thread's row r of two sees, counted from the first key of the tile's first. Rows past the end
// see what the last one sees.
template <class Call>
__device__ __forceinline__ Range seen_keys(const Call& call, const QueryTile& tile, int row_in_block, int r) {
  const int place = tile.first_place + min(row_in_block + 8 * r, tile.places - 1);
  const Range range = call.seen.of(tile.batch, tile.head, place);
  return Range{range.begin - tile.first_key, range.end - tile.first_key};
}

// Scores as they go into the exponential: capped, and -inf where a query does not see or list a key.
template <class Shape>
__device__ __forceinline__ void shape_scores(float (&scores)[Shape::kKeys / 2], const ForwardCall& call,
                                             const QueryTile& tile, int entry, const Range (&seen)[2],
                                             const Range& every, int row_in_block) {
  const int tile_begin = key_begin<Shape>(entry);
  if constexpr (Shape::kGeneral) {
    if (call.softcap > 0) cap_scores(scores, call.scale, call.softcap);
    if (entry % 2 == 0) hide_unlisted_keys<Shape>(scores, call, tile, tile_begin, row_in_block);
  }
  if (tile_begin >= every.begin && tile_begin + Shape::kKeys <= every.end) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) keep_seen(scores, r, seen[r], tile_begin, column_of_thread());
}

template <class Shape>
__device__ void consume(const ForwardCall& call, ForwardShared<Shape>& shared) {
  using Element = typename Shape::Element;
  constexpr int kScores = Shape::kKeys / 2;
  const int consumer = warpgroup_index() - 1;
  const int row_in_block = row_of_thread(consumer * 64);
  const IssueOrder<Shape> issue{consumer};
  const float scale_log2 = (Shape::kGeneral && call.softcap > 0 ? call.softcap : call.scale) * kLog2E;
  RingPosition<Shape::kQueryStages> query_at;
  TilePosition tile_at;
  RingPosition<Shape::kStages> key_at;
  RingPosition<Shape::kStages> value_at;
  issue.begin();

  for (; shared.tiles.wait(tile_at); shared.tiles.pass_warp(tile_at)) {
    const QueryTile& tile = shared.tiles[tile_at];  // stays there until the end: registers are short

    float output[Shape::kHeadDim / 2] = {};
    Softmax softmax;
    RowEnds ends;

    if (tile.key_tiles > 0) {
      float scores[kScores];
      float factor[2];
      std::uint32_t probabilities[kScores / 2];

      int n = tile.key_tiles - 1;
      // Tiles that this consumer's rows do not see are for the others.
      const auto leave_to_others = [&](int end) {
        for (; n >= end; --n) {
          shared.key_ring.wait_full(key_at);
          shared.key_ring.pass_warp(key_at);
          issue.wait();
          issue.pass();
          shared.value_ring.wait_full(value_at);
          shared.value_ring.pass_warp(value_at);
        }
      };
      if constexpr (Shape::kOwnKeyTiles) leave_to_others(tile.own[consumer].seen.end);

      const Element* query = shared.query[query_at.stage()] + consumer * 64 * kTileColumns;
      shared.query_ring.wait_full(query_at);
      shared.key_ring.wait_full(key_at);
      multiply_rows<Shape, Shape::kRows>(scores, query, shared.key[key_at.stage()]);
      Range seen[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) seen[r] = seen_keys(call, tile, row_in_block, r);
      const Range every{__reduce_max_sync(0xFFFFFFFF, max(seen[0].begin, seen[1].begin)),
                        __reduce_min_sync(0xFFFFFFFF, min(seen[0].end, seen[1].end))};
      ptx::wgmma_wait<0>(scores);
      shared.key_ring.pass_warp(key_at);
      shape_scores<Shape>(scores, call, tile, key_entry<Shape>(call, tile, n), seen, every, row_in_block);
      softmax.raise(scores, scale_log2, factor);
      softmax.template exponentiate<0, kScores>(scores, scale_log2);
      pack_pairs<Element>(probabilities, scores);

      const auto add_keys = [&](auto seen_whole) {
        using guesses = std::bool_constant<decltype(seen_whole)::value && (Shape::kTile.guesses > 0)>;
        const int entry = key_entry<Shape>(call, tile, n);
        shared.key_ring.wait_full(key_at);
        issue.wait();
        multiply_rows<Shape, Shape::kRows>(scores, query, shared.key[key_at.stage()]);  // S = Q K^T
        shared.value_ring.wait_full(value_at);
        multiply_columns<Shape>(output, probabilities, shared.value[value_at.stage()]);  // O += P V
        issue.pass();
        ptx::wgmma_wait<1>(scores);
        shared.key_ring.pass_warp(key_at);
        // O is waited for when some exponentials are done: from then on probabilities are packed between
        // them.
        const auto wait_for_output = [&](const float(&sums)[2]) {
          ptx::finish_first((__float_as_uint(sums[0]) | __float_as_uint(sums[1])) >> 31,
                            &shared.never_written);
          ptx::wgmma_wait<0>(output);
          shared.value_ring.pass_warp(value_at);
        };
        bool rescale = false;
        if constexpr (guesses::value) {
          constexpr int kFirst = Shape::kTile.guesses;
          float guessed[kScores];
          float total[2] = {0, 0};
          softmax.template guess<0, kFirst>(scores, scale_log2, guessed, total);
          wait_for_output(total);
          softmax.template guess<kFirst, kScores>(scores, scale_log2, guessed, total);
          pack_pairs<Element>(probabilities, guessed);
          if (Softmax::guessed_right<kScores>(total)) {
            softmax.sum[0] += total[0];
            softmax.sum[1] += total[1];
          } else {
            rescale = softmax.raise(scores, scale_log2, factor);
            softmax.template exponentiate<0, kScores>(scores, scale_log2);
            pack_pairs<Element>(probabilities, scores);
          }
        } else {
          constexpr int kFirst = kScores / 4;
          if constexpr (!decltype(seen_whole)::value) {
            shape_scores<Shape>(scores, call, tile, entry, seen, every, row_in_block);
          }
          rescale = softmax.raise(scores, scale_log2, factor);
          softmax.template exponentiate<0, kFirst>(scores, scale_log2);
          wait_for_output(softmax.sum);
          softmax.template exponentiate<kFirst, kScores>(scores, scale_log2);
          pack_pairs<Element>(probabilities, scores);
        }
        if (rescale) {
#pragma unroll
          for (int i = 0; i < Shape::kHeadDim / 2; ++i) output[i] *= factor[i % 4 / 2];
        }
      };
      --n;
      if constexpr (!Shape::kOwnKeyTiles) {
        for (; n >= 0; --n) add_keys(std::false_type{});
      } else {
        const OwnKeyTiles& own = tile.own[consumer];
        const int whole = own.whole.begin;
        const int first = own.seen.begin;
        for (const int end = max(own.whole.end, first); n >= end; --n) add_keys(std::false_type{});
        for (; n >= whole; --n) add_keys(std::true_type{});
        for (; n >= first; --n) add_keys(std::false_type{});
      }

      shared.query_ring.pass_warp(query_at);
      shared.value_ring.wait_full(value_at);
      multiply_columns<Shape>(output, probabilities, shared.value[value_at.stage()]);
      ends = end_rows(call, tile, row_in_block, softmax);
      ptx::wgmma_wait<0>(output);
      shared.value_ring.pass_warp(value_at);
      if constexpr (Shape::kOwnKeyTiles) leave_to_others(0);
    } else {
      ends = end_rows(call, tile, row_in_block, softmax);
    }
    finish<Shape>(call, tile, ends, output);
  }
  issue.end();
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    forward_kernel(const __grid_constant__ ForwardCall call) {
  run_block<Shape, ForwardShared<Shape>>(
      call, [&](QueryTile& to, int index) { describe<Shape>(call, to, index); },
      [&](auto& shared) {
        if (threadIdx.x == 0) load<Shape>(call, shared);
      },
      [&](auto& shared) { consume<Shape>(call, shared); });
}

}  // namespace headroom::cuda::sm90
