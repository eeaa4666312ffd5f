// CRC-32C (Castagnoli), the checksum of iSCSI and ext4: finds every flipped bit and every burst of up to 32
// bits, and misses any other change once in 2^32. It guards against accidents, not against people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headroom {

// The checksum of what `before` is the checksum of, followed by these bytes; 0 is that of nothing. With the
// processor's own instruction (SSE4.2) where it has it, with tables elsewhere: the value is the same.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace headroom
