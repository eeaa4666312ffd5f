// What depends on the instruction set: one table of kernels for each, and the shape of their vectors, which
// sizes of workspaces follow from. The level of a device's description says which.
#pragma once

#include "headroom/core/device.h"

namespace headroom::cpu {

// The one of three that belongs to the level: tables, or functions that return them.
template <class T>
[[nodiscard]] constexpr T at_level(SimdLevel level, T avx512, T avx2, T portable) {
  if (level == SimdLevel::avx512) return avx512;
  return level == SimdLevel::avx2 ? avx2 : portable;
}

struct VectorShape {
  int lanes = 0;    // floats of a vector
  int columns = 0;  // vectors across a register tile

  // Floats across a register tile.
  [[nodiscard]] constexpr int panel() const { return lanes * columns; }
};

// A constant, and not a question to the kernels: a plan is made without them.
[[nodiscard]] constexpr VectorShape vector_shape(SimdLevel level) {
  return at_level<VectorShape>(level, {16, 4}, {8, 2}, {4, 2});
}

}  // namespace headroom::cpu
