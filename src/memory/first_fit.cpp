// The measures a packing is held against: the lower bound, and an allocator that cannot see ahead.
#include <algorithm>
#include <map>

#include "headroom/core/checked.h"
#include "headroom/memory/packer.h"
#include "memory/lifetimes.h"

namespace headroom {

std::int64_t live_peak(std::span<const BlockLifetime> blocks) {
  std::int64_t live = 0;
  std::int64_t peak = 0;
  for (const LifetimeEdge& edge : edges_in_time(blocks)) {
    live = edge.is_begin ? checked_add(live, blocks[edge.block].bytes) : live - blocks[edge.block].bytes;
    peak = std::max(peak, live);
  }
  return peak;
}

Packing first_fit(std::span<const BlockLifetime> blocks, std::int64_t alignment) {
  check(alignment > 0, "alignment {} is not positive", alignment);
  Packing packing{std::vector<std::int64_t>(blocks.size()), 0};
  std::map<std::int64_t, std::int64_t> gaps = {
      {0, std::numeric_limits<std::int64_t>::max()}};  // begin -> end
  for (const LifetimeEdge& edge : edges_in_time(blocks)) {
    const std::int64_t bytes = round_up(blocks[edge.block].bytes, alignment);
    if (bytes == 0) continue;
    if (edge.is_begin) {
      const auto gap =
          std::ranges::find_if(gaps, [&](const auto& entry) { return entry.second - entry.first >= bytes; });
      check(gap != gaps.end(), "the blocks do not fit in 64 bits");
      const auto [begin, end] = *gap;
      packing.offsets[edge.block] = begin;
      packing.bytes = std::max(packing.bytes, begin + bytes);
      gaps.erase(gap);
      if (begin + bytes < end) gaps.emplace(begin + bytes, end);
      continue;
    }
    std::int64_t begin = packing.offsets[edge.block];
    std::int64_t end = begin + bytes;
    auto next = gaps.lower_bound(begin);
    if (next != gaps.end() && next->first == end) {
      end = next->second;
      next = gaps.erase(next);
    }
    if (next != gaps.begin() && std::prev(next)->second == begin) {
      begin = std::prev(next)->first;
      gaps.erase(std::prev(next));
    }
    gaps.emplace(begin, end);
  }
  return packing;
}

}  // namespace headroom
