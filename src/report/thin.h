// Thinning for a picture: of a long series, what can be seen.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace headroom {

// A span of the series for each pixel of a wide screen.
inline constexpr std::size_t kSpans = 1000;

// Indices to draw, rising: all where they are few; else of each span the first highest and the first lowest,
// and the two ends. So the first highest of all is among them.
template <class Value>
std::vector<std::size_t> visible(std::span<const Value> heights, std::size_t spans = kSpans) {
  const std::size_t count = heights.size();
  std::vector<std::size_t> kept;
  if (count <= 2 * spans) {
    for (std::size_t i = 0; i < count; ++i) kept.push_back(i);
    return kept;
  }
  kept.push_back(0);
  for (std::size_t span = 0; span < spans; ++span) {
    const std::size_t begin = span * count / spans;
    const std::size_t end = (span + 1) * count / spans;
    const auto part = heights.subspan(begin, end - begin);
    const auto lowest = static_cast<std::size_t>(std::ranges::min_element(part) - part.begin());
    const auto highest = static_cast<std::size_t>(std::ranges::max_element(part) - part.begin());
    kept.push_back(begin + std::min(lowest, highest));
    kept.push_back(begin + std::max(lowest, highest));
  }
  kept.push_back(count - 1);
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  return kept;
}

}  // namespace headroom
