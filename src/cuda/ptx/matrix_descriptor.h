// Where an operand of a warpgroup's products (wgmma.h) lies in shared memory: tiles of 64 elements by rows,
// 128 bytes a row, swizzled as the copy engine's 128-byte mode writes them; `major` says whether the 64
// elements run along the product's inner dimension (inner) or along its outer one (outer).
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.h"

namespace headroom {

inline constexpr int kWarpgroup = 128;  // threads that multiply together

namespace ptx {

enum class Major : int { inner = 0, outer = 1 };

// Where an operand lies. Its address / 16 is the lowest part, so that an element further on is one addition
// away, where a descriptor made anew takes five instructions.
struct MatrixDescriptor {
  std::uint32_t low;

  // inner: 8 rows are 1024 bytes, and tiles of the inner dimension are separate operands.
  // outer: 8 rows are 1024 bytes, and the next 64 elements of the outer dimension lie tile_bytes further.
  __device__ __forceinline__ static MatrixDescriptor of(const void* tile, std::uint32_t tile_bytes = 16) {
    return {(tile_bytes >> 4) << 16 | shared_address(tile) >> 4};
  }
  __device__ __forceinline__ MatrixDescriptor operator+(int elements) const {
    return {low + static_cast<std::uint32_t>(elements / 8)};
  }
  [[nodiscard]] __device__ __forceinline__ std::uint64_t bits() const {
    constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
    constexpr std::uint64_t kEightRows = std::uint64_t{1024 >> 4} << 32;
    return kSwizzle128 | kEightRows | low;
  }
};

}  // namespace ptx
}  // namespace headroom
