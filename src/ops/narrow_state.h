// One element of AdamW over a state of 16 or 8 bits, for every device. Roundings are done on the bits of
// floats and no product is fused with a sum, so that all devices store the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "headroom/core/random.h"
#include "headroom/ops/adamw.h"
#include "ops/adamw_factors.h"

namespace headroom {

HEADROOM_HOST_DEVICE
inline std::uint32_t float_bits(float value) {
  std::uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
HEADROOM_HOST_DEVICE
inline float float_of_bits(std::uint32_t bits) {
  float value = 0;
  memcpy(&value, &bits, sizeof value);
  return value;
}

inline constexpr std::uint64_t kRoundingSeed = 0x726f756e64696e67;  // of every run

// An update as kernels take it.
struct NarrowUpdate {
  NarrowAdamWViews views;
  AdamWFactors factors;
  Random random;  // of the step
  std::int64_t first_element;
};

// Sixteen random bits for each rounding of an element.
struct RoundingBits {
  std::uint32_t weight;
  std::uint32_t first;
  std::uint32_t second;
};
// Those of elements 2 * pair and 2 * pair + 1 of the flat buffer.
struct PairOfRoundingBits {
  RoundingBits of[2];
};
HEADROOM_HOST_DEVICE
inline PairOfRoundingBits rounding_bits(const Random& random, std::uint64_t pair) {
  const Philox bits = random.bits_of_pair(pair);
  return {{{bits.word[0] & 0xffffu, bits.word[0] >> 16, bits.word[1] & 0xffffu},
           {bits.word[2] & 0xffffu, bits.word[2] >> 16, bits.word[3] & 0xffffu}}};
}

// Up or down, each as likely as the value is near: right on average.
HEADROOM_HOST_DEVICE
inline std::uint16_t round_to_bf16(float value, std::uint32_t random) {
  const std::uint32_t bits = float_bits(value);
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>((finite ? bits + random : bits) >> 16 | (nan ? 0x40u : 0u));
}

// Magnitudes of kExponentBits of exponent and three of fraction, of which the largest exponent is that of the
// block: an f32's, biased, as one byte. Below the smallest exponent values are evenly spaced down to 0, as in
// IEEE formats.
template <int kExponentBits>
struct MomentCode {
  static constexpr int kTop = (1 << kExponentBits) - 1;
  static constexpr int kLeast = kTop + 3;  // a block's exponent: its smallest code is a normal f32 then

  // For a block whose largest magnitude has these bits, so that it is not rounded past the largest code.
  HEADROOM_HOST_DEVICE
  static std::uint32_t block_exponent(std::uint32_t largest) {
    if (largest == 0) return 0;
    const std::uint32_t exponent = (largest + 0xfffffu) >> 23;
    return exponent < kLeast ? kLeast : exponent > 255 ? 255 : exponent;
  }

  HEADROOM_HOST_DEVICE
  static std::uint32_t encode(std::uint32_t magnitude, std::uint32_t exponent, std::uint32_t random) {
    if (magnitude < 0x800000u) return 0;  // and what f32 has below its normal numbers
    const int relative = static_cast<int>(magnitude >> 23) - static_cast<int>(exponent) + kTop;
    const std::uint32_t fraction = magnitude & 0x7fffffu;
    std::uint32_t fixed = 0;  // 20 bits behind the point
    if (relative >= 1) {
      fixed = (static_cast<std::uint32_t>(relative) << 23) | fraction;
    } else if (relative > -31) {
      fixed = (fraction | 0x800000u) >> (1 - relative);
    }
    return (fixed + (random << 4)) >> 20;
  }

  HEADROOM_HOST_DEVICE
  static float decode(std::uint32_t code, std::uint32_t exponent) {
    if (exponent == 0) return 0;
    const std::uint32_t own = code >> 3;
    const std::uint32_t significand = (code & 7u) | (own > 0 ? 8u : 0u);
    const std::uint32_t unit = exponent - kLeast + (own > 0 ? own : 1u);
    return static_cast<float>(significand) * float_of_bits(unit << 23);
  }
};
using FirstMomentCode = MomentCode<4>;
using SecondMomentCode = MomentCode<5>;

// The moments of an element, as f32.
struct Moments {
  float first;
  float second;
};

struct EightBitMoments {
  std::uint8_t first;
  std::uint8_t second;
};
HEADROOM_HOST_DEVICE
inline Moments decode_moments(EightBitMoments codes, std::uint32_t first_exponent,
                              std::uint32_t second_exponent) {
  const float first = FirstMomentCode::decode(codes.first & 0x7fu, first_exponent);
  return {codes.first > 0x7fu ? -first : first, SecondMomentCode::decode(codes.second, second_exponent)};
}
HEADROOM_HOST_DEVICE
inline EightBitMoments encode_moments(const Moments& moments, std::uint32_t first_exponent,
                                      std::uint32_t second_exponent, const RoundingBits& random) {
  const std::uint32_t bits = float_bits(moments.first);
  const std::uint32_t first = FirstMomentCode::encode(bits & 0x7fffffffu, first_exponent, random.first);
  const std::uint32_t magnitude = float_bits(moments.second);
  const std::uint32_t second = SecondMomentCode::encode(magnitude, second_exponent, random.second);
  return {static_cast<std::uint8_t>(first | (bits >> 31 << 7)),
          static_cast<std::uint8_t>(second == 0 && magnitude != 0 ? 1u : second)};
}

// a b + c d, each product rounded for itself.
HEADROOM_HOST_DEVICE
inline float sum_of_products(float a, float b, float c, float d) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(__fmul_rn(a, b), __fmul_rn(c, d));
#else
  return a * b + c * d;
#endif
}

// moments <- those after the update; returns the weight after it
HEADROOM_HOST_DEVICE
inline float update_weight(const AdamWFactors& factors, float weight, float gradient, Moments& moments) {
  moments.first = sum_of_products(factors.beta1, moments.first, factors.one_minus_beta1, gradient);
  moments.second =
      sum_of_products(factors.beta2, moments.second, factors.one_minus_beta2, gradient * gradient);
  const float divisor =
      sum_of_products(sqrtf(moments.second), factors.inverse_root_bias, factors.epsilon, 1.0F);
  return sum_of_products(weight, factors.decay, -factors.step_size, moments.first / divisor);
}

}  // namespace headroom
