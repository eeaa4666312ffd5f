// Rotary position embedding: the angles of a token once, then all its heads. Angles are f64 up to the last
// step, so that cos and sin are right to the last bit or so of f32 at every 32-bit position.
#pragma once

#include "ops/cpu/walk-inl.h"

namespace headroom::cpu {

// pi/2 in three parts. The first two have 22 bits, so that their products with a 31-bit number of quarter
// turns are exact.
inline constexpr double kQuarterTurnHigh = 0x1.921fbp+0;
inline constexpr double kQuarterTurnMiddle = 0x1.5110bp-22;
inline constexpr double kQuarterTurnLow = 0x1.18469898cc517p-44;
inline constexpr double kQuarterTurnsPerRadian = 0x1.45f306dc9c883p-1;
inline constexpr double kRoundToWhole = 0x1.8p52;  // added, leaves a whole number in the low bits
// Keeps 22 bits of a significand: the product with a position is exact too.
inline constexpr std::int64_t kHighBits = ~((std::int64_t{1} << 31) - 1);

template <class Vec>
[[gnu::always_inline]] inline void angles(const RopeFrequencies& frequencies, std::int32_t position,
                                          float* cosine, float* sine) {
  using W = Wide<Vec>;
  using Doubles = typename W::Doubles;
  using Words = typename W::Words;
  const auto p = static_cast<double>(position);
  static_assert(kMaxRopeHalf % W::kLanes == 0);  // the last vector may pass half, never the arrays
  for (int i = 0; i < frequencies.half; i += W::kLanes) {
    const Doubles inverse = W::load(frequencies.inverse + i);
    const auto high = reinterpret_cast<Doubles>(reinterpret_cast<Words>(inverse) & kHighBits);
    const Doubles low = inverse - high;
    // n <- the nearest number of quarter turns
    const Doubles shifted = p * inverse * kQuarterTurnsPerRadian + kRoundToWhole;
    const Doubles n = shifted - kRoundToWhole;
    // r <- position * inverse - n * pi/2, within pi/4 of zero. The first difference is exact, the others are
    // of small numbers.
    const Doubles r =
        ((p * high - n * kQuarterTurnHigh) + (p * low - n * kQuarterTurnMiddle)) - n * kQuarterTurnLow;
    // Taylor's series: the next terms are below 7e-12 and 4e-13.
    const Doubles square = r * r;
    Doubles s = square * (-1.0 / 39916800) + 1.0 / 362880;
    s = s * square - 1.0 / 5040;
    s = s * square + 1.0 / 120;
    s = s * square - 1.0 / 6;
    s = s * square * r + r;
    Doubles c = square * (1.0 / 479001600) - 1.0 / 3628800;
    c = c * square + 1.0 / 40320;
    c = c * square - 1.0 / 720;
    c = c * square + 1.0 / 24;
    c = c * square - 0.5;
    c = c * square + 1.0;
    // Odd quarter turns swap the two; the second bit is the sign of the sine, and of the cosine one quarter
    // turn earlier.
    const auto quarter = reinterpret_cast<Words>(shifted);
    const Words swap = -(quarter & 1);
    const auto sine_bits = reinterpret_cast<Words>(s);
    const auto cosine_bits = reinterpret_cast<Words>(c);
    const Words difference = (sine_bits ^ cosine_bits) & swap;
    const Words sine_sign = (quarter & 2) << 62;
    const Words cosine_sign = ((quarter + 1) & 2) << 62;
    const auto turned_sine = reinterpret_cast<Doubles>((sine_bits ^ difference) ^ sine_sign);
    const auto turned_cosine = reinterpret_cast<Doubles>((cosine_bits ^ difference) ^ cosine_sign);
    W::store(turned_sine * frequencies.magnitude, sine + i);
    W::store(turned_cosine * frequencies.magnitude, cosine + i);
  }
}

template <class Vec>
void rope_angles(const RopeFrequencies& frequencies, std::int32_t position, float* cosine, float* sine) {
  angles<Vec>(frequencies, position, cosine, sine);
}

template <class Vec>
void rope(const RopeTokens& tokens, std::int64_t begin, std::int64_t end) {
  const std::int64_t half = tokens.frequencies->half;
  with_dtype<Vec>(tokens.dtype, [&]<DType kType>() {
    alignas(64) float cosine[kMaxRopeHalf];
    alignas(64) float sine[kMaxRopeHalf];
    for (std::int64_t token = begin; token < end; ++token) {
      angles<Vec>(*tokens.frequencies, tokens.positions[token], cosine, sine);
      if (tokens.backward) {
        for (int i = 0; i < half; ++i) sine[i] = -sine[i];
      }
      auto* head = static_cast<Stored<kType>*>(tokens.x) + token * tokens.token_stride;
      for (std::int64_t h = 0; h < tokens.heads; ++h, head += tokens.head_stride) {
        // (a, b) <- (a cos - b sin, b cos + a sin)
        for_vectors<Vec>(half, [&](std::int64_t i, int valid) {
          const Vec a = load_elements<Vec, kType>(head + i, valid);
          const Vec b = load_elements<Vec, kType>(head + half + i, valid);
          const Vec c = load_elements<Vec, DType::f32>(cosine + i, valid);
          const Vec s = load_elements<Vec, DType::f32>(sine + i, valid);
          store_elements<Vec, kType>(a * c - b * s, head + i, valid);
          store_elements<Vec, kType>(fma(b, c, a * s), head + half + i, valid);
        });
      }
    }
  });
}

}  // namespace headroom::cpu
