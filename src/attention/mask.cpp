#include "headroom/attention/mask.h"

#include <algorithm>
#include <vector>

#include "headroom/core/error.h"
#include "headroom/core/parse.h"
#include "headroom/core/text.h"

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

Mask parse_mask(std::string_view text) {
  constexpr std::string_view kAccepted = "use full, causal, window:N or dilated:SEGMENT/RATE, joined by +";
  Mask mask;
  std::vector<std::string_view> kinds;
  for (const std::string_view part : parse_list(fmt::format("mask {}", quote(text)), text, '+')) {
    const std::size_t colon = std::min(part.find(':'), part.size());
    const std::string_view kind = part.substr(0, colon);
    const std::string_view value = part.substr(std::min(colon + 1, part.size()));
    check(std::ranges::find(kinds, kind) == kinds.end(), "mask {} has {} twice", quote(text), quote(kind));
    kinds.push_back(kind);
    if (part == "causal") {
      mask.causal = true;
    } else if (part.starts_with("window:")) {
      mask.causal = true;
      mask.window_left = parse_whole("window", value, 1) - 1;
    } else if (part.starts_with("dilated:")) {
      const std::size_t slash = value.find('/');
      check(slash != std::string_view::npos, "mask {} needs a segment and a rate, such as dilated:8192/2",
            quote(part));
      mask.dilations[0] = {parse_whole("segment", value.substr(0, slash), 1),
                           parse_whole("rate", value.substr(slash + 1), 1)};
      mask.dilation_count = 1;
    } else {
      check(part == "full", "mask {} is unknown; {}", quote(part), kAccepted);
      check(part == text, "mask {} joins full, which lets every query see every key, with other rules; {}",
            quote(text), kAccepted);
    }
  }
  return mask;
}

std::int64_t MaskView::pairs(std::int64_t q_begin, std::int64_t q_end, KeyRange keys) const {
  std::int64_t count = 0;
  for (std::int64_t q = q_begin; q < q_end; ++q) {
    const KeyRange seen = intersect(interval(q), keys);
    if (seen.empty() || !takes_part(position(q))) continue;
    const std::int64_t first = segment(position(q)).begin + dilation_offset - key_start;
    const std::int64_t rate = dilation.segment == 0 ? 1 : dilation.rate;
    if (blocks == nullptr) {
      count += rate == 1 ? seen.size() : dilated_count(seen, first, rate);
      continue;
    }
    const std::int32_t* row = blocks + q / block_rows * block_stride;
    for (std::int64_t i = 0; i < max_blocks_per_row && row[i] >= 0; ++i) {
      const KeyRange block =
          intersect(seen, {row[i] * block_columns, (row[i] + std::int64_t{1}) * block_columns});
      count += rate == 1 ? block.size() : dilated_count(block, first, rate);
    }
  }
  return count;
}

}  // namespace headroom
