// Block lists as kernels with tiles of any size see them: pure functions, the same on host and device, held
// against MaskView::attends by a host test. A tile of queries visits the union of what its rows list; inside
// a tile that is listed in part, a thread asks for its own rows and columns. Numbers are 32 bits and compared
// in units of blocks, so that whatever a list holds, nothing overflows and no index leaves it.
#pragma once

#include <cstdint>

#include "attention/cuda/tiles.h"

namespace headroom::cuda::sm90 {

// What lists say of a tile.
enum class Listed : std::uint8_t { none, some, all };

// Of a tile's columns, at most 128, a thread of a warpgroup's product holds two of every eight,
// `first_column` and its neighbour: a bit each, those inside [begin, end).
[[nodiscard]] HEADROOM_HOST_DEVICE
constexpr std::uint32_t held_columns(std::int32_t begin, std::int32_t end, std::int32_t first_column) {
  const auto bits_before = [first_column](std::int32_t column) {
    const std::int32_t after = most(column - first_column, 0);
    const std::int32_t count = after / 8 * 2 + least(after % 8, 2);
    return static_cast<std::uint32_t>((std::uint64_t{0xFFFFFFFF} << count) >> 32);
  };
  return bits_before(end) & ~bits_before(begin);
}

// The most steps of `step` that a piece of `size`, from a multiple of its size on, has a part of.
[[nodiscard]] constexpr std::int64_t most_touched(std::int64_t size, std::int64_t step) {
  if (size % step == 0) return size / step;
  return step % size == 0 ? 1 : (size - 2) / step + 2;
}

// The lists of all query heads: rising numbers of key blocks, ended by a negative one or by their length.
// They are copies: those of a call are shared by the heads of a K/V group and have any strides.
struct BlockLists {
  std::int32_t* blocks = nullptr;  // [query heads of all sequences, lists_per_head, stride]; null: none
  std::int64_t stride = 0;
  std::int32_t lists_per_head = 0;
  std::int32_t length = 0;  // of a list that rises
  std::int32_t rows = 1;    // of a block
  std::int32_t columns = 1;

  // Without their memory.
  [[nodiscard]] static BlockLists of(const Mask& mask, std::int64_t seq_q, std::int64_t seq_k) {
    const std::int64_t rows = least(mask.block_rows, most<std::int64_t>(seq_q, 1));
    const std::int64_t columns = least(mask.block_columns, most<std::int64_t>(seq_k, 1));
    const std::int64_t length = least(mask.max_blocks_per_row, ceil_div(seq_k, columns));
    return {nullptr,
            length,
            static_cast<std::int32_t>(ceil_div(seq_q, rows)),
            static_cast<std::int32_t>(length),
            static_cast<std::int32_t>(rows),
            static_cast<std::int32_t>(columns)};
  }

  [[nodiscard]] HEADROOM_HOST_DEVICE
  const std::int32_t* list(std::int64_t head, std::int32_t n) const {
    return blocks + (head * lists_per_head + n) * stride;
  }
  // The first entry that is not below a block; its length where there is none.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int32_t find(const std::int32_t* list, std::int32_t block) const {
    std::int32_t low = 0;
    std::int32_t high = length;
    while (low < high) {
      const std::int32_t middle = (low + high) / 2;
      if (list[middle] < 0 || list[middle] >= block) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

  // What the lists of a tile's rows say of its keys; neither range is empty or leaves the sequence.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  Listed of_tile(std::int64_t head, Range tile_rows, Range keys) const {
    const std::int32_t first = keys.begin / columns;
    const std::int32_t last = (keys.end - 1) / columns;
    bool any = false;
    bool every = true;
    for (std::int32_t n = tile_rows.begin / rows; n <= (tile_rows.end - 1) / rows; ++n) {
      const std::int32_t* blocks_of = list(head, n);
      const std::int32_t at = find(blocks_of, first);
      any |= at < length && blocks_of[at] >= 0 && blocks_of[at] <= last;
      // As lists rise, those between are there as well.
      const std::int32_t to = at + last - first;
      every &= to < length && blocks_of[at] == first && blocks_of[to] == last;
    }
    return every ? Listed::all : any ? Listed::some : Listed::none;
  }

  // Of a thread's columns of a tile of keys, those that a row lists.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::uint32_t keys_of(std::int64_t head, std::int32_t row, Range keys, std::int32_t first_column) const {
    const std::int32_t* blocks_of = list(head, row / rows);
    const std::int32_t last = (keys.end - 1) / columns;
    std::uint32_t bits = 0;
    for (std::int32_t at = find(blocks_of, keys.begin / columns); at < length; ++at) {
      const std::int32_t block = blocks_of[at];
      if (block < 0 || block > last) break;
      bits |= held(block * columns - keys.begin, columns, keys, first_column);
    }
    return bits;
  }

  // Of a thread's columns of a tile of queries, those that list a key.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::uint32_t queries_of(std::int64_t head, std::int32_t key, Range queries,
                           std::int32_t first_column) const {
    const std::int32_t block = key / columns;
    std::uint32_t bits = 0;
    for (std::int32_t n = queries.begin / rows; n <= (queries.end - 1) / rows; ++n) {
      const std::int32_t* blocks_of = list(head, n);
      const std::int32_t at = find(blocks_of, block);
      if (at < length && blocks_of[at] == block) {
        bits |= held(n * rows - queries.begin, rows, queries, first_column);
      }
    }
    return bits;
  }

 private:
  // `size` columns from `begin` on, as far as they are in the tile.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  static std::uint32_t held(std::int32_t begin, std::int32_t size, Range tile, std::int32_t first_column) {
    return held_columns(most(begin, 0), least(most(begin + size, 0), tile.end - tile.begin), first_column);
  }
};

// What lists come to in tiles: the key tiles that a query tile visits, rising; and the way back, from the
// last query tile that visits a key tile to the one before it. A visit is an index into a head's entries:
// from it follow its query tile, and its turn, its number among that tile's. About as long as the lists.
struct Visits {
  BlockLists lists;
  std::int32_t* counts = nullptr;   // [heads of all sequences, query_tiles]; null: no lists
  std::int32_t* entries = nullptr;  // [heads, query_tiles, capacity]: 2 * key tile, + 1 where all rows list
                                    // all of its keys
  std::int32_t* last = nullptr;     // [heads, key_tiles]: the last visit to a key tile, or -1; backward only
  std::int32_t* before = nullptr;   // [heads, query_tiles, capacity]: the visit before, or -1; likewise
  std::int32_t capacity = 1;
  std::int32_t query_tiles = 0;  // of a head
  std::int32_t key_tiles = 0;
  std::int32_t tile_rows = 1;
  std::int32_t tile_keys = 1;

  // Of a query tile: every entry of its rows' lists brings in the tiles that the block touches.
  [[nodiscard]] std::int32_t most_visits() const {
    const std::int64_t listing =
        least<std::int64_t>(most_touched(tile_rows, lists.rows), lists.lists_per_head);
    return clamped(listing * lists.length * most_touched(lists.columns, tile_keys), 1, most(key_tiles, 1));
  }
  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int64_t tile(std::int64_t head, std::int32_t query_tile) const {
    return head * query_tiles + query_tile;
  }
  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int64_t offset(std::int64_t head, std::int32_t visit) const {
    return head * query_tiles * capacity + visit;
  }
  // The visit of a query tile to a key tile, or -1.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int32_t find(std::int64_t head, std::int32_t query_tile, std::int32_t key_tile) const {
    const std::int32_t first = query_tile * capacity;
    const std::int32_t count = counts[tile(head, query_tile)];
    const std::int32_t* visited = entries + offset(head, first);
    std::int32_t low = 0;
    std::int32_t high = count;
    while (low < high) {
      const std::int32_t middle = (low + high) / 2;
      if (visited[middle] / 2 >= key_tile) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low < count && visited[low] / 2 == key_tile ? first + low : -1;
  }
};

}  // namespace headroom::cuda::sm90
