// 64-bit arithmetic on sizes that says so when it does not fit, instead of wrapping.
#pragma once

#include <cstdint>

#include "headroom/core/error.h"

namespace headroom {

__extension__ using UInt128 = unsigned __int128;  // wide enough for the product of two 64-bit sizes

[[nodiscard]] inline std::int64_t checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  check(!__builtin_add_overflow(a, b, &sum), "{} + {} does not fit in 64 bits", a, b);
  return sum;
}

[[nodiscard]] inline std::int64_t checked_multiply(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  check(!__builtin_mul_overflow(a, b, &product), "{} x {} does not fit in 64 bits", a, b);
  return product;
}

// The smallest multiple of `step` that is at least `value`; both are positive or value is 0.
[[nodiscard]] inline std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return checked_add(value, step - 1) / step * step;
}

[[nodiscard]] constexpr std::int64_t divide_up(std::int64_t value, std::int64_t step) {
  return value / step + (value % step != 0);
}

}  // namespace headroom
