// What two partial results weigh in their merge, and what closes an open one, on host and device.
#pragma once

#include <cmath>
#include <limits>

#include "headroom/core/random.h"

namespace headroom {

// O <- into * O_into + from * O_from, where a side of weight 0 is not read: it has seen nothing, or nothing
// that counts beside the other.
struct MergeWeights {
  static constexpr float kNothing = -std::numeric_limits<float>::infinity();

  float into = 0;
  float from = 0;
  float lse = 0;

  [[nodiscard]] HEADROOM_HOST_DEVICE
  static MergeWeights of(float lse_into, float lse_from) {
    const float higher = lse_into > lse_from ? lse_into : lse_from;
    if (higher == kNothing) return {0, 0, kNothing};
    const float into = std::exp(lse_into - higher);
    const float from = std::exp(lse_from - higher);
    return {into / (into + from), from / (into + from), higher + std::log(into + from)};
  }
  [[nodiscard]] HEADROOM_HOST_DEVICE
  float merged(float output_into, float output_from) const {
    return (into == 0 ? 0 : into * output_into) + (from == 0 ? 0 : from * output_from);
  }
};

// A row as close_attention leaves it; one that was not open (its sum is 0) stays what it was.
struct ClosedRow {
  double inverse = 1;
  float lse = 0;

  [[nodiscard]] HEADROOM_HOST_DEVICE
  static ClosedRow of(float base, double row_sum) {
    constexpr double kLn2 = 0.6931471805599453;
    if (row_sum == 0) return {1, base};
    return {1 / row_sum, static_cast<float>(kLn2 * double{base} + std::log(row_sum))};
  }
  [[nodiscard]] HEADROOM_HOST_DEVICE
  float divided(float output) const { return static_cast<float>(double{output} * inverse); }
};

}  // namespace headroom
