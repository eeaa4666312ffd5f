// A model of the caching allocator that PyTorch uses on CUDA: what the same blocks would reserve there.
// Requests are rounded to 512 bytes; up to 1 MiB they come from 2 MiB segments, below 10 MiB from 20 MiB
// segments, above from segments of their own in steps of 2 MiB; best fit, split, merged on free, never given
// back before memory runs out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "headroom/memory/packer.h"

namespace headroom {

struct CachingAllocatorResult {
  std::int64_t allocated_peak_bytes = 0;  // rounded requests alive together
  std::int64_t reserved_peak_bytes = 0;   // segments held
  std::int64_t segments = 0;              // asked of the driver, over the whole trace
  // Where a capacity was given and did not suffice: the block that failed and its rounded size.
  std::optional<std::size_t> failed_block;
  std::int64_t failed_bytes = 0;
};

// A capacity of 0 is without limit. Cached segments are given back when an allocation would pass the
// capacity.
[[nodiscard]] CachingAllocatorResult simulate_caching_allocator(std::span<const BlockLifetime> blocks,
                                                                std::int64_t capacity_bytes = 0);

}  // namespace headroom
