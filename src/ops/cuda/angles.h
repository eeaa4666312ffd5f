// The angles of rotary position embedding, of a few tokens at a time.
#pragma once

#include "cuda/device_code.h"
#include "headroom/ops/rope_frequencies.h"

namespace headroom::cuda {

struct Angle {
  float cosine;
  float sine;
};

// Of position * inverse, right to the last bit or so of f32 at every 32-bit position: the product and what is
// left of it after whole quarter turns are exact to twice a double's digits.
__device__ __forceinline__ Angle angle_of(std::int32_t position, double inverse, double magnitude) {
  constexpr double kQuarterTurn = 0x1.921fb54442d18p+0;
  constexpr double kQuarterTurnRest = 0x1.1a62633145c07p-54;
  constexpr double kQuarterTurnsPerRadian = 0x1.45f306dc9c883p-1;
  const auto p = static_cast<double>(position);
  const double product = p * inverse;
  const double rest = fma(p, inverse, -product);
  const double turns = rint(product * kQuarterTurnsPerRadian);
  const double r = fma(-turns, kQuarterTurn, product) + fma(-turns, kQuarterTurnRest, rest);
  // Taylor's series: |r| is at most an eighth of a turn, and what is left out is below 1e-13.
  const double square = r * r;
  double c = 1.0 / 479001600;
  double s = -1.0 / 39916800;
  constexpr double kCosine[] = {-1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -0.5, 1.0};
  constexpr double kSine[] = {1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1.0};
#pragma unroll
  for (const double term : kCosine) c = fma(c, square, term);
#pragma unroll
  for (const double term : kSine) s = fma(s, square, term);
  c *= magnitude;
  s *= magnitude * r;
  // Odd quarter turns swap the two; each quarter turn changes a sign.
  const auto quarter = static_cast<std::int64_t>(turns);
  if (quarter & 1) {
    const double before = c;
    c = s;
    s = before;
  }
  if ((quarter + 1) & 2) c = -c;
  if (quarter & 2) s = -s;
  return {static_cast<float>(c), static_cast<float>(s)};
}

// What a kernel needs to make them.
struct Rotation {
  const std::int32_t* positions;
  RopeFrequencies frequencies;
  bool backward;  // by the negative angle
};

__device__ __forceinline__ Angle turn_of(const Rotation& rotation, std::int64_t token, int pair) {
  Angle angle =
      angle_of(rotation.positions[token], rotation.frequencies.inverse[pair], rotation.frequencies.magnitude);
  if (rotation.backward) angle.sine = -angle.sine;
  return angle;
}

// angles [count, half] <- of the tokens from `first` on; by all of a block's threads, who wait for each other
// before they read.
__device__ __forceinline__ void make_angles(const Rotation& rotation, std::int64_t first, int count,
                                            int threads, Angle* angles) {
  const int half = rotation.frequencies.half;
  for (int i = static_cast<int>(threadIdx.x); i < count * half; i += threads) {
    angles[i] = turn_of(rotation, first + i / half, i % half);
  }
}

}  // namespace headroom::cuda
