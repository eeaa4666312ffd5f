// The ways to compute a CRC-32C, for the one that chooses and for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headroom {

// Any processor: eight bytes at a time, one table for each.
[[nodiscard]] std::uint32_t crc32c_with_tables(std::span<const std::byte> bytes, std::uint32_t before);

}  // namespace headroom
