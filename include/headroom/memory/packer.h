// The packer: offsets for blocks whose lifetimes are known, so that blocks alive together never share bytes
// and the highest end is as low as can be found. A pure function: the same blocks give the same offsets,
// everywhere.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace headroom {

inline constexpr std::int64_t kArenaAlignment = 256;

// Alive from begin up to and not including end, in any unit that orders allocations and frees.
struct BlockLifetime {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t bytes = 0;
};

struct Packing {
  std::vector<std::int64_t> offsets;  // one per block, multiples of the alignment
  std::int64_t bytes = 0;             // highest end, rounded up to the alignment
};

[[nodiscard]] Packing pack(std::span<const BlockLifetime> blocks, std::int64_t alignment = kArenaAlignment);

// What an allocator that cannot see ahead does: each block, as it comes, in the lowest gap that takes it.
[[nodiscard]] Packing first_fit(std::span<const BlockLifetime> blocks,
                                std::int64_t alignment = kArenaAlignment);

// The largest sum of bytes alive at one moment: no packing can be smaller.
[[nodiscard]] std::int64_t live_peak(std::span<const BlockLifetime> blocks);

}  // namespace headroom
