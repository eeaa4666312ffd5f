// Backward on intervals: which tile of keys a block has, which tiles of queries it takes, and after whom it
// adds to their dQ.
#pragma once

#include "attention/cuda/intervals/tiles-inl.h"

namespace headroom::cuda {

// A block's share of the work.
struct KeyShare {
  std::int64_t b;
  std::int64_t kv;
  std::int32_t key_tile;
  int slice;  // of the columns of the gradients

  // Neighbours in the order work on different heads, for those of one head wait for each other: so many that
  // the blocks of a chip are some thirty deep in each, and still share its queries in the L2. Not tuned.
  static constexpr std::int64_t kHeadsAbreast = 8;
  __device__ static KeyShare of(const AttentionCall& call, std::int64_t number, int slices) {
    const std::int64_t tiles = call.lists.key_tiles;
    const std::int64_t index = number / slices;
    const std::int64_t first_head = index / (kHeadsAbreast * tiles) * kHeadsAbreast;
    const std::int64_t heads = least(kHeadsAbreast, call.batch * call.heads_kv - first_head);
    const std::int64_t in_section = index - first_head * tiles;
    const std::int64_t head = first_head + in_section % heads;
    return {head / call.heads_kv, head % call.heads_kv, static_cast<std::int32_t>(in_section / heads),
            static_cast<int>(number % slices)};
  }
};

// The tiles of queries that a tile of keys works on: head after head of its group, rising.
struct QueryTiles {
  const AttentionCall& call;
  const QueryTiling& tiling;
  std::int64_t b;
  std::int32_t key_tile;
  std::int32_t head;  // the next to be opened
  std::int32_t end_head;
  Range tiles{};  // what is left of the opened one's

  __device__ QueryTiles(const AttentionCall& c, const QueryTiling& t, const KeyShare& share)
      : call(c),
        tiling(t),
        b(share.b),
        key_tile(share.key_tile),
        head(static_cast<std::int32_t>(share.kv * c.group() + c.group_begin)),
        end_head(head + static_cast<std::int32_t>(c.group_end - c.group_begin)) {}

  struct Item {
    std::int32_t head;
    std::int32_t tile;  // -1: there are no more
  };
  __device__ Item next() {
    while (true) {
      for (; !tiles.empty(); ++tiles.begin) {
        if (call.blocks.blocks == nullptr ||
            listed(call.block_list(b, head - 1, tiling.block_of(tiles.begin)),
                   {key_tile * kTileKeys, (key_tile + 1) * kTileKeys})) {
          return {head - 1, tiles.begin++};
        }
      }
      if (head == end_head) return {0, -1};
      const Range rows = call.lists.seen_by[call.list_of(b, head) * call.lists.key_tiles + key_tile];
      tiles = tiles_of_rows(tiling, rows, ListHead::of(call, b, head).count_q);
      ++head;
    }
  }
  __device__ __noinline__ static bool listed(BlockList list, Range keys) { return list.touches(keys); }
};

// One tile of queries as a block meets it.
struct QueryTile {
  ListHead head;
  Range rows;
  TileIntervals intervals;
  BlockList list;

  __device__ static QueryTile of(const AttentionCall& call, const QueryTiling& tiling, std::int64_t b,
                                 QueryTiles::Item item) {
    const ListHead head = ListHead::of(call, b, item.head);
    const Range rows = tiling.tile(item.tile, head.count_q);
    return {head, rows, TileIntervals::of(head.first, head.last, rows),
            call.blocks.blocks == nullptr ? BlockList{}
                                          : call.block_list(b, item.head, tiling.block_of(item.tile))};
  }
  // The tile of keys that adds to dQ before this one, or -1. Asks what QueryTiles asks: whatever lists hold,
  // the one that is waited for comes.
  __device__ std::int32_t previous(const AttentionCall& call, const QueryTiling& tiling, std::int32_t tile,
                                   std::int32_t key_tile) const {
    const Range* seen_by = call.lists.seen_by + call.list_of(head.b, head.head) * call.lists.key_tiles;
    std::int32_t found = previous_key_tile(intervals.some, list, key_tile, kTileKeys);
    for (; found >= 0; --found) {
      const Range tiles = tiles_of_rows(tiling, seen_by[found], head.count_q);
      if (tiles.begin <= tile && tile < tiles.end &&
          list.touches({found * kTileKeys, (found + 1) * kTileKeys})) {
        break;
      }
    }
    return found;
  }
  // Where the statistics of a row of the tile lie, or -1 past its end.
  __device__ std::int64_t statistics(const AttentionCall& call, int row) const {
    const std::int32_t i = rows.begin + row;
    return i < rows.end ? call.statistics(head.b, head.head) + head.row(i) : -1;
  }
};

}  // namespace headroom::cuda
