// Which keys a query sees. One algebra: causal AND window AND documents AND dilation AND blocks. Mask holds
// the rules of a whole problem and no pointers. MaskView applies them to one head of one sequence, with the
// batch's boundaries and lists at hand, on host and device.
//
// Queries and keys may be chunks of a longer sequence. Rows are counted from the chunk's first query or key.
// Positions are counted from the start of the whole sequence: causal, window, documents and dilation compare
// positions. Block lists are counted in rows and keys of the chunk.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>

#include "headroom/core/random.h"

namespace headroom {

// Segments of `segment` positions (restarting at document starts); in each, the rows that take part are those
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

  bool causal = false;                     // position p sees keys up to p
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

// The half-open interval [begin, end).
template <class Index>
struct Interval {
  Index begin = 0;
  Index end = 0;

  [[nodiscard]] HEADROOM_HOST_DEVICE
  constexpr bool empty() const { return begin >= end; }
  [[nodiscard]] HEADROOM_HOST_DEVICE
  constexpr Index size() const { return empty() ? 0 : end - begin; }
  bool operator==(const Interval&) const = default;
};
using KeyRange = Interval<std::int64_t>;  // of keys

struct MaskView {
  std::int64_t seq_q = 0;
  std::int64_t seq_k = 0;
  std::int64_t query_start = 0;  // position of the first query
  std::int64_t key_start = 0;    // position of the first key
  bool causal = false;
  std::int64_t window_left = Mask::kUnlimited;
  std::int64_t window_right = Mask::kUnlimited;
  const std::int32_t* document_starts =
      nullptr;  // [documents + 1] positions, rising from 0; null: one document
  std::int64_t documents = 0;
  Dilation dilation;
  std::int64_t dilation_offset = 0;  // head % rate
  const std::int32_t* blocks =
      nullptr;                    // [query tiles, max_blocks_per_row] rising, then -1; null: every key tile
  std::int64_t block_stride = 0;  // from one query tile's list to the next
  std::int64_t block_rows = 0;
  std::int64_t block_columns = 0;
  std::int64_t max_blocks_per_row = 0;

  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int64_t position(std::int64_t q) const { return query_start + q; }

  // Positions of the document that a position is in. The last document and a sequence without documents have
  // no end.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  KeyRange document(std::int64_t position) const;
  // Positions of the dilated segment that a position is in; without dilation, of its document.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  KeyRange segment(std::int64_t position) const;
  // Whether the row at a position takes part in the dilated pattern.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  bool takes_part(std::int64_t position) const;
  // The keys that causal, window, documents and the dilated segment leave a query: one interval of the chunk,
  // 0 <= begin <= end <= seq_k. Both ends rise with the query.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  KeyRange interval(std::int64_t q) const;

  [[nodiscard]] HEADROOM_HOST_DEVICE
  bool attends(std::int64_t q, std::int64_t k) const;
  // The number of pairs of queries [q_begin, q_end) with keys [keys.begin, keys.end) that attend, exactly.
  [[nodiscard]] std::int64_t pairs(std::int64_t q_begin, std::int64_t q_end, KeyRange keys) const;

 private:
  [[nodiscard]] HEADROOM_HOST_DEVICE
  bool lists_block(std::int64_t q, std::int64_t k) const;
};

HEADROOM_HOST_DEVICE
inline KeyRange MaskView::document(std::int64_t position) const {
  if (document_starts == nullptr) return {0, Mask::kUnlimited};
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
  return {document_starts[low],
          low == documents ? Mask::kUnlimited : document_starts[low + 1]};  // padding after the last document
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
  KeyRange range{key_start, key_start + seq_k};
  if (document_starts != nullptr || dilation.segment != 0) {
    const KeyRange own = segment(p);
    if (own.begin > range.begin) range.begin = own.begin;
    if (own.end < range.end) range.end = own.end;
  }
  // Differences, not sums: an unlimited window is the largest number there is.
  if (window_left < p - range.begin) range.begin = p - window_left;
  const std::int64_t right = causal ? 0 : window_right;
  if (right < range.end - 1 - p) range.end = p + right + 1;
  // What lies outside the chunk is an empty range at the chunk's nearer end.
  const auto inside = [this](std::int64_t position, std::int64_t low) {
    const std::int64_t k = position - key_start;
    return k < low ? low : k > seq_k ? seq_k : k;
  };
  const std::int64_t begin = inside(range.begin, 0);
  return {begin, inside(range.end, begin)};
}

HEADROOM_HOST_DEVICE
inline bool MaskView::lists_block(std::int64_t q, std::int64_t k) const {
  const std::int32_t* row = blocks + q / block_rows * block_stride;
  for (std::int64_t i = 0; i < max_blocks_per_row && row[i] >= 0; ++i) {
    if (row[i] == k / block_columns) return true;
  }
  return false;
}

HEADROOM_HOST_DEVICE
inline bool MaskView::attends(std::int64_t q, std::int64_t k) const {
  const KeyRange range = interval(q);
  if (k < range.begin || k >= range.end) return false;
  if (dilation.segment != 0 && !(takes_part(position(q)) && takes_part(key_start + k))) return false;
  return blocks == nullptr || lists_block(q, k);
}

}  // namespace headroom
