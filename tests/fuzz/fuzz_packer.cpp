// Any lifetimes at all: a packing that the independent checker accepts, or an Error.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "headroom/core/error.h"
#include "headroom/memory.h"
#include "memory/packing_checker.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::int64_t alignment = std::int64_t{1} << (data[0] % 12);
  // Five bytes a block: two moments, 24 bits of size shifted by as much as the second moment's upper bits
  // say.
  std::vector<headroom::BlockLifetime> blocks;
  for (std::size_t i = 1; i + 5 <= size && blocks.size() < 500; i += 5) {
    const std::int64_t bytes = (std::int64_t{data[i + 2]} << 16 | data[i + 3] << 8 | data[i + 4])
                               << (data[i + 1] >> 3);
    blocks.push_back({data[i] % 64, data[i + 1] % 64, bytes});
  }
  try {
    const headroom::Packing packing = headroom::pack(blocks, alignment);
    if (headroom::packing_fault(blocks, packing, alignment)) std::abort();
    if (packing.bytes < headroom::live_peak(blocks)) std::abort();
    if (headroom::packing_fault(blocks, headroom::first_fit(blocks, alignment), alignment)) std::abort();
    const auto cached = headroom::simulate_caching_allocator(blocks);
    if (cached.reserved_peak_bytes < headroom::live_peak(blocks)) std::abort();
  } catch (const headroom::Error&) {
    // sizes that add up past 64 bits
  }
  return 0;
}
