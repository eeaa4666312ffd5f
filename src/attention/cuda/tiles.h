// Which tiles of keys a tile of queries works on, and the rows behind them: pure functions, the same on host
// and device, held against MaskView::attends by a host test. Kernels work on lists of rows in which every
// query sees one interval [first, last) of a list of keys and both ends rise with the query: all rows of a
// chunk, or those that take part in a dilated pattern (attention/dilated_rows.h). Indices in a list are 32
// bits, offsets into tensors 64. Whatever document_starts and blocks hold, no index leaves its list.
#pragma once

#include <cstdint>
#include <limits>

#include "headroom/attention/mask.h"

namespace headroom::cuda {

using Range = Interval<std::int32_t>;  // of a list

inline constexpr int kWarp = 32;
inline constexpr int kRowThreads = 256;  // of a block of a kernel that works row by row
inline constexpr float kLog2E = 1.4426950408889634F;
inline constexpr float kLn2 = 0.6931471805599453F;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class T>
[[nodiscard]] HEADROOM_HOST_DEVICE
constexpr T least(T a, T b) {
  return a < b ? a : b;
}
template <class T>
[[nodiscard]] HEADROOM_HOST_DEVICE
constexpr T most(T a, T b) {
  return a > b ? a : b;
}
[[nodiscard]] HEADROOM_HOST_DEVICE
constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step;
}
[[nodiscard]] HEADROOM_HOST_DEVICE
constexpr std::int32_t clamped(std::int64_t value, std::int64_t low, std::int64_t high) {
  return static_cast<std::int32_t>(value < low ? low : value > high ? high : value);
}

// A problem's mask without its batch: what mask_view makes on the host, made on the device.
struct MaskRule {
  MaskView view;  // of the first sequence
  std::int64_t documents_stride = 0;
  Dilation dilations[Mask::kMaxDilations];
  std::int64_t heads_per_dilation = 0;  // 0: not dilated, or mixed
  bool mixed = false;

  [[nodiscard]] HEADROOM_HOST_DEVICE
  bool dilated() const { return mixed || heads_per_dilation > 0; }

  [[nodiscard]] HEADROOM_HOST_DEVICE
  MaskView of(std::int64_t batch, std::int64_t head, int pattern) const {
    MaskView mask = view;
    if (mask.document_starts != nullptr) mask.document_starts += batch * documents_stride;
    if (dilated()) {
      mask.dilation = dilations[mixed ? pattern : head / heads_per_dilation];
      mask.dilation_offset = head % mask.dilation.rate;
    }
    return mask;
  }
};

// What query q sees where every row is in the list.
[[nodiscard]] HEADROOM_HOST_DEVICE
inline Range plain_interval(const MaskView& mask, std::int64_t q) {
  const KeyRange seen = mask.interval(q);
  return {static_cast<std::int32_t>(seen.begin), static_cast<std::int32_t>(seen.end)};
}

// How rows are cut into tiles of queries: `rows` each; where there are block lists, a block is cut evenly,
// so that a tile has one list.
struct QueryTiling {
  std::int64_t block_rows = 0;  // 0: no lists
  std::int64_t tiles_per_block = 1;
  std::int32_t rows = 1;

  [[nodiscard]] static QueryTiling of(std::int64_t block_rows, std::int64_t seq_q, std::int32_t tile_rows) {
    if (block_rows == 0) return {0, 1, tile_rows};
    const std::int64_t block = least(block_rows, most<std::int64_t>(seq_q, 1));
    const std::int64_t tiles_per_block = ceil_div(block, tile_rows);
    return {block, tiles_per_block, static_cast<std::int32_t>(ceil_div(block, tiles_per_block))};
  }
  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int64_t count(std::int64_t seq_q) const {
    return block_rows == 0 ? ceil_div(seq_q, rows) : ceil_div(seq_q, block_rows) * tiles_per_block;
  }
  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int64_t block_of(std::int64_t tile) const { return tile / tiles_per_block; }
  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int64_t tile_of(std::int64_t row) const {
    // In 32 bits, which divide faster.
    const auto r = static_cast<std::uint32_t>(row);
    const auto tile_rows = static_cast<std::uint32_t>(rows);
    if (block_rows == 0) return r / tile_rows;
    const auto block = static_cast<std::uint32_t>(block_rows);
    return r / block * tiles_per_block + r % block / tile_rows;
  }
  // Rows of a tile in a list of `total`; may be empty.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  Range tile(std::int64_t index, std::int32_t total) const {
    const std::int64_t begin = block_rows == 0
                                   ? index * rows
                                   : index / tiles_per_block * block_rows + index % tiles_per_block * rows;
    const std::int64_t block_end = block_rows == 0 ? total : (index / tiles_per_block + 1) * block_rows;
    const std::int64_t end = least(least(begin + rows, block_end), std::int64_t{total});
    return {clamped(begin, 0, total), clamped(end, clamped(begin, 0, total), total)};
  }
};

// The keys that some row of a tile sees, and those that every row sees; block lists aside.
struct TileIntervals {
  Range some;
  Range all;

  [[nodiscard]] HEADROOM_HOST_DEVICE
  static TileIntervals of(const std::int32_t* first, const std::int32_t* last, Range rows) {
    if (rows.empty()) return {};
    return {{first[rows.begin], last[rows.end - 1]}, {first[rows.end - 1], last[rows.begin]}};
  }
  [[nodiscard]] HEADROOM_HOST_DEVICE
  bool covers(Range keys) const { return all.begin <= keys.begin && keys.end <= all.end; }
};

// One row of block lists: rising numbers of key blocks, ended by a negative one or by its length.
struct BlockList {
  const std::int32_t* blocks = nullptr;  // null: every block
  std::int64_t length = 0;
  std::int64_t columns = 1;

  // The first entry that is `from` or higher, or past the last one.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int64_t entry(std::int64_t from) const {
    std::int64_t low = 0;
    std::int64_t high = length;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (blocks[middle] < 0 || blocks[middle] >= from) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  // Whether a listed block has a key in the range.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  bool touches(Range keys) const {
    if (blocks == nullptr) return true;
    const std::int64_t i = entry(keys.begin / columns);
    return i < length && blocks[i] >= 0 && blocks[i] * columns < keys.end;
  }
};

// The tiles of `keys` keys that a tile of queries works on, rising.
class KeyTiles {
 public:
  HEADROOM_HOST_DEVICE
  KeyTiles(Range seen, std::int32_t keys, const BlockList& list)
      : list_(list),
        keys_(keys),
        tile_(seen.begin / keys),
        end_(seen.empty() ? 0 : (seen.end - 1) / keys + 1) {}

  // The next one's number, or -1.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int32_t next() {
    if (list_.blocks == nullptr) return tile_ < end_ ? tile_++ : -1;
    for (; entry_ < list_.length && list_.blocks[entry_] >= 0; ++entry_) {
      const std::int64_t begin = list_.blocks[entry_] * list_.columns;
      const std::int64_t from = most<std::int64_t>(begin / keys_, tile_);
      const std::int64_t to = least<std::int64_t>(ceil_div(begin + list_.columns, keys_), end_);
      if (from >= to) continue;
      tile_ = static_cast<std::int32_t>(from) + 1;
      return tile_ - 1;
    }
    return -1;
  }

 private:
  BlockList list_;
  std::int64_t entry_ = 0;
  std::int32_t keys_;
  std::int32_t tile_;
  std::int32_t end_;
};

// The tile before `tile` among those that KeyTiles gives, or -1.
[[nodiscard]] HEADROOM_HOST_DEVICE
inline std::int32_t previous_key_tile(Range seen, const BlockList& list, std::int32_t tile,
                                      std::int32_t keys) {
  std::int64_t previous = tile - 1;
  if (list.blocks != nullptr) {
    const std::int64_t first_key = std::int64_t{tile} * keys;
    const std::int64_t block = first_key / list.columns;
    const std::int64_t i = list.entry(block);
    const bool both = block * list.columns < first_key && i < list.length && list.blocks[i] == block;
    if (!both) previous = i == 0 ? -1 : (list.blocks[i - 1] * list.columns + list.columns - 1) / keys;
  }
  return previous >= seen.begin / keys ? static_cast<std::int32_t>(previous) : -1;
}

// The rows of a list that may see one of the keys: ends rise, so they are neighbours. A row that sees nothing
// because it stands behind all keys begins at their end, so `keys` has to stop there.
[[nodiscard]] HEADROOM_HOST_DEVICE
inline Range rows_that_see(const std::int32_t* first, const std::int32_t* last, std::int32_t rows,
                           Range keys) {
  const auto search = [rows](const std::int32_t* ends, std::int32_t above) {
    std::int32_t low = 0;
    std::int32_t high = rows;
    while (low < high) {
      const std::int32_t middle = low + (high - low) / 2;
      if (ends[middle] > above) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  };
  return {search(last, keys.begin), search(first, keys.end - 1)};
}

// The tiles of such rows, of `count` in the list. A tile whose first rows end before the keys and whose last
// begin after them counts, as it does in KeyTiles.
[[nodiscard]] HEADROOM_HOST_DEVICE
inline Range tiles_of_rows(const QueryTiling& tiling, Range rows, std::int32_t count) {
  if (rows.begin >= count || rows.end <= 0) return {};
  return {static_cast<std::int32_t>(tiling.tile_of(rows.begin)),
          static_cast<std::int32_t>(tiling.tile_of(rows.end - 1) + 1)};
}

}  // namespace headroom::cuda
