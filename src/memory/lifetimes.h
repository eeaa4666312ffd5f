// Blocks as a sequence: begins and ends in the order of time, ends first where both fall on one moment.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "headroom/memory/packer.h"

namespace headroom {

struct LifetimeEdge {
  std::int64_t time = 0;
  bool is_begin = false;
  std::size_t block = 0;
};

[[nodiscard]] inline std::vector<LifetimeEdge> edges_in_time(std::span<const BlockLifetime> blocks) {
  std::vector<LifetimeEdge> edges;
  edges.reserve(blocks.size() * 2);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].begin >= blocks[i].end) continue;  // never alive
    edges.push_back({blocks[i].begin, true, i});
    edges.push_back({blocks[i].end, false, i});
  }
  std::ranges::sort(edges, {}, [](const LifetimeEdge& e) { return std::tuple(e.time, e.is_begin, e.block); });
  return edges;
}

}  // namespace headroom
