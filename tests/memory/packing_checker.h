// An independent judge of packings: it knows nothing of skylines.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "headroom/memory/packer.h"

namespace headroom {

// What is wrong with the packing, or nothing. Walks through time with the set of address ranges in use.
inline std::optional<std::string> packing_fault(std::span<const BlockLifetime> blocks, const Packing& packing,
                                                std::int64_t alignment) {
  if (packing.offsets.size() != blocks.size()) return "wrong number of offsets";
  std::vector<std::tuple<std::int64_t, bool, std::size_t>> edges;  // frees sort before allocations
  std::int64_t highest = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (packing.offsets[i] < 0 || packing.offsets[i] % alignment != 0)
      return "block " + std::to_string(i) + " is not aligned";
    if (blocks[i].bytes == 0 || blocks[i].begin >= blocks[i].end) continue;
    highest = std::max(highest, packing.offsets[i] + blocks[i].bytes);
    edges.emplace_back(blocks[i].begin, true, i);
    edges.emplace_back(blocks[i].end, false, i);
  }
  if (highest > packing.bytes) return "a block ends at " + std::to_string(highest) + ", past the packed size";
  if (packing.bytes - highest >= alignment) return "the packed size is more than the highest end";
  std::sort(edges.begin(), edges.end());
  std::map<std::int64_t, std::int64_t> in_use;  // begin -> end
  for (const auto& [time, begins, i] : edges) {
    const std::int64_t begin = packing.offsets[i];
    if (!begins) {
      in_use.erase(begin);
      continue;
    }
    const std::int64_t end = begin + blocks[i].bytes;
    const auto next = in_use.lower_bound(begin);
    const bool hits_next = next != in_use.end() && next->first < end;
    const bool hits_previous = next != in_use.begin() && std::prev(next)->second > begin;
    if (hits_next || hits_previous)
      return "block " + std::to_string(i) + " overlaps one that is alive with it";
    in_use.emplace(begin, end);
  }
  return std::nullopt;
}

}  // namespace headroom
