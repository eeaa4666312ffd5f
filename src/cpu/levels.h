// One table of kernels per instruction set; the level of a device's description says which.
#pragma once

#include "headroom/core/device.h"

namespace headroom::cpu {

// The one of three that belongs to the level: tables, or functions that return them.
template <class T>
[[nodiscard]] constexpr T at_level(SimdLevel level, T avx512, T avx2, T portable) {
  if (level == SimdLevel::avx512) return avx512;
  return level == SimdLevel::avx2 ? avx2 : portable;
}

}  // namespace headroom::cpu
