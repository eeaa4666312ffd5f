#include "headroom/attention/mask.h"

#include <algorithm>

namespace headroom {
namespace {

KeyRange intersect(KeyRange a, KeyRange b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

// Keys of the range that take part in the segment's pattern.
std::int64_t dilated_count(KeyRange range, std::int64_t first, std::int64_t rate) {
  if (range.empty()) return 0;
  // Members are first, first + rate, ...; count those below each end.
  const auto below = [&](std::int64_t end) { return end <= first ? 0 : (end - first + rate - 1) / rate; };
  return below(range.end) - below(range.begin);
}

}  // namespace

TileKind MaskView::tile(std::int64_t q_begin, std::int64_t q_end, KeyRange keys) const {
  bool some = false;
  bool all = true;
  for (std::int64_t q = q_begin; q < q_end; ++q) {
    const KeyRange range = interval(q);
    const bool sees = !intersect(range, keys).empty() && (dilation.segment == 0 || takes_part(position(q)));
    some |= sees;
    all &= sees && range.begin <= keys.begin && keys.end <= range.end;
  }
  if (!some) return TileKind::skip;
  if (blocks != nullptr || dilation.segment != 0) {
    const std::int64_t count = pairs(q_begin, q_end, keys);
    all = count == (q_end - q_begin) * keys.size();
    if (count == 0) return TileKind::skip;
  }
  return all ? TileKind::full : TileKind::partial;
}

std::int64_t MaskView::pairs(std::int64_t q_begin, std::int64_t q_end, KeyRange keys) const {
  std::int64_t count = 0;
  for (std::int64_t q = q_begin; q < q_end; ++q) {
    const KeyRange seen = intersect(interval(q), keys);
    if (seen.empty() || !takes_part(position(q))) continue;
    const std::int64_t first = segment(position(q)).begin + dilation_offset;
    const std::int64_t rate = dilation.segment == 0 ? 1 : dilation.rate;
    if (blocks == nullptr) {
      count += rate == 1 ? seen.size() : dilated_count(seen, first, rate);
      continue;
    }
    const std::int32_t* row = blocks + q / block_rows * max_blocks_per_row;
    for (std::int64_t i = 0; i < max_blocks_per_row && row[i] >= 0; ++i) {
      const KeyRange block =
          intersect(seen, {row[i] * block_columns, (row[i] + std::int64_t{1}) * block_columns});
      count += rate == 1 ? block.size() : dilated_count(block, first, rate);
    }
  }
  return count;
}

}  // namespace headroom
