// Which keys a query sees. One algebra: causal AND window AND documents AND dilation AND blocks. Mask says it
// for a whole problem and holds no pointers; MaskView says it for one head of one sequence, with the batch's
// boundaries and lists at hand, on host and device. Whoever skips, schedules or counts asks these functions.
//
// Rows are counted from the first query, keys from the first key; query q stands at position q + seq_k -
// seq_q among the keys.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>

#include "headroom/core/random.h"

namespace headroom {

// Segments of `segment` rows (restarting at document starts); in each, the rows that take part are those
// whose distance from the segment's start leaves head % rate when divided by rate. A row that takes no part
// sees nothing.
struct Dilation {
  std::int64_t segment = 0;  // 0: not dilated
  std::int64_t rate = 1;

  bool operator==(const Dilation&) const = default;
};

struct Mask {
  static constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
  static constexpr int kMaxDilations = 8;

  bool causal = false;                     // aligned at the bottom right: position p sees keys up to p
  std::int64_t window_left = kUnlimited;   // keys before its own position that a query sees
  std::int64_t window_right = kUnlimited;  // and after it
  std::int64_t max_documents = 0;          // capacity for packed documents; 0: one sequence
  std::array<Dilation, kMaxDilations> dilations{};
  int dilation_count = 0;  // patterns; heads are dealt to them in equal groups, in order
  bool mix_dilations =
      false;  // instead every head runs every pattern, and they are weighted by their log-sum-exp
  bool detach_mixing =
      false;  // with that: gradients take the weights for constants, as the published implementation does
  std::int64_t block_rows = 0;  // block-sparse: tile sizes, and how many key tiles a query tile may list
  std::int64_t block_columns = 0;
  std::int64_t max_blocks_per_row = 0;

  // How many patterns a head runs: each is a MaskView of its own.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  constexpr int patterns_per_head() const { return mix_dilations && dilation_count > 0 ? dilation_count : 1; }

  bool operator==(const Mask&) const = default;
};

// full, or one or more of causal, window:N (causal, N keys and the query's own among them) and
// dilated:SEGMENT/RATE, each once, joined by +.
[[nodiscard]] Mask parse_mask(std::string_view text);

// Keys [begin, end).
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] HEADROOM_HOST_DEVICE
  constexpr bool empty() const { return begin >= end; }
  [[nodiscard]] HEADROOM_HOST_DEVICE
  constexpr std::int64_t size() const { return empty() ? 0 : end - begin; }
  bool operator==(const KeyRange&) const = default;
};

// What a tile of scores needs: nothing, no masking, or masking.
enum class TileKind : std::uint8_t { skip, full, partial };

struct MaskView {
  std::int64_t seq_q = 0;
  std::int64_t seq_k = 0;
  bool causal = false;
  std::int64_t window_left = Mask::kUnlimited;
  std::int64_t window_right = Mask::kUnlimited;
  const std::int32_t* document_starts =
      nullptr;  // [documents + 1], rising from 0 to seq_k; null: one document
  std::int64_t documents = 0;
  Dilation dilation;
  std::int64_t dilation_offset = 0;  // head % rate
  const std::int32_t* blocks =
      nullptr;  // [query tiles, max_blocks_per_row] rising, then -1; null: every key tile
  std::int64_t block_rows = 0;
  std::int64_t block_columns = 0;
  std::int64_t max_blocks_per_row = 0;

  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int64_t position(std::int64_t q) const { return q + seq_k - seq_q; }

  // The document of a position, or the whole sequence.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  KeyRange document(std::int64_t position) const;
  // The dilated segment of a position inside its document, or the document.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  KeyRange segment(std::int64_t position) const;
  // Whether the row at a position takes part in the dilated pattern.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  bool takes_part(std::int64_t position) const;
  // Everything but dilation and blocks leaves a query one interval of keys.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  KeyRange interval(std::int64_t q) const;

  [[nodiscard]] HEADROOM_HOST_DEVICE
  bool attends(std::int64_t q, std::int64_t k) const;
  // Of queries [q_begin, q_end) with keys [keys.begin, keys.end). Partial may be said of a tile that is full,
  // never the rest.
  [[nodiscard]] TileKind tile(std::int64_t q_begin, std::int64_t q_end, KeyRange keys) const;
  // How many pairs of that tile attend, exactly.
  [[nodiscard]] std::int64_t pairs(std::int64_t q_begin, std::int64_t q_end, KeyRange keys) const;

 private:
  [[nodiscard]] HEADROOM_HOST_DEVICE
  bool lists_block(std::int64_t q, std::int64_t k) const;
};

HEADROOM_HOST_DEVICE
inline KeyRange MaskView::document(std::int64_t position) const {
  if (document_starts == nullptr) return {0, seq_k};
  // The last start that is not above the position; empty documents share a start and are passed over.
  std::int64_t low = 0;
  std::int64_t high = documents;
  while (low < high) {
    const std::int64_t middle = (low + high + 1) / 2;
    if (document_starts[middle] <= position) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low == documents ? KeyRange{document_starts[documents], seq_k}  // padding after the last document
                          : KeyRange{document_starts[low], document_starts[low + 1]};
}

HEADROOM_HOST_DEVICE
inline KeyRange MaskView::segment(std::int64_t position) const {
  const KeyRange whole = document(position);
  if (dilation.segment == 0) return whole;
  const std::int64_t begin = whole.begin + (position - whole.begin) / dilation.segment * dilation.segment;
  return {begin, dilation.segment < whole.end - begin ? begin + dilation.segment : whole.end};
}

HEADROOM_HOST_DEVICE
inline bool MaskView::takes_part(std::int64_t position) const {
  if (dilation.segment == 0) return true;
  return (position - segment(position).begin) % dilation.rate == dilation_offset;
}

HEADROOM_HOST_DEVICE
inline KeyRange MaskView::interval(std::int64_t q) const {
  const std::int64_t p = position(q);
  KeyRange range{0, seq_k};
  if (document_starts != nullptr || dilation.segment != 0) range = segment(p);
  // Differences, not sums: an unlimited window is the largest number there is.
  if (window_left < p - range.begin) range.begin = p - window_left;
  const std::int64_t right = causal ? 0 : window_right;
  if (right < range.end - 1 - p) range.end = p + right + 1;
  return range;
}

HEADROOM_HOST_DEVICE
inline bool MaskView::lists_block(std::int64_t q, std::int64_t k) const {
  const std::int32_t* row = blocks + q / block_rows * max_blocks_per_row;
  for (std::int64_t i = 0; i < max_blocks_per_row && row[i] >= 0; ++i) {
    if (row[i] == k / block_columns) return true;
  }
  return false;
}

HEADROOM_HOST_DEVICE
inline bool MaskView::attends(std::int64_t q, std::int64_t k) const {
  const KeyRange range = interval(q);
  if (k < range.begin || k >= range.end) return false;
  if (dilation.segment != 0 && !(takes_part(position(q)) && takes_part(k))) return false;
  return blocks == nullptr || lists_block(q, k);
}

}  // namespace headroom
