// As src/cuda/ptx/arithmetic.h, on the host.
#pragma once

#include <cmath>
#include <cstdint>

#include "headroom/core/dtype.h"

namespace headroom::ptx {

inline float exp2_approximate(float x) {
  return exp2f(x);
}
inline std::uint32_t pack_bf16(float low, float high) {
  return BFloat16(low).bits | std::uint32_t{BFloat16(high).bits} << 16;
}
inline std::uint32_t pack_f16(float low, float high) {
  return Float16(low).bits | std::uint32_t{Float16(high).bits} << 16;
}

}  // namespace headroom::ptx
