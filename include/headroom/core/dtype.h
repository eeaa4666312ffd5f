// Element types. f32, bf16 and f16 are stored and computed on; f64 serves the references; i32 holds tokens
// and labels; u8 holds workspaces. Conversions round to nearest even and keep NaN and infinities.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace headroom {

enum class DType : std::uint8_t { f32, bf16, f16, f64, i32, u8 };

[[nodiscard]] std::int64_t size_bytes(DType dtype);
[[nodiscard]] std::string_view name(DType dtype);
[[nodiscard]] DType parse_dtype(std::string_view text);  // what a person may ask for: f32, bf16, f16

// Brain floating point: the upper half of an f32.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  constexpr explicit BFloat16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
    // Adding 0x7fff plus the lowest kept bit carries exactly when nearest-even rounds up.
    const std::uint32_t rounded = word + 0x7fffu + ((word >> 16) & 1u);
    bits = static_cast<std::uint16_t>(nan ? (word >> 16) | 0x40u : rounded >> 16);
  }
  constexpr explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

// IEEE half precision.
struct Float16 {
  std::uint16_t bits = 0;

  Float16() = default;
  constexpr explicit Float16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (word >> 16) & 0x8000u;
    const std::uint32_t magnitude = word & 0x7fffffffu;
    std::uint32_t half = 0;
    if (magnitude > 0x7f800000u) {
      half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);  // NaN, quiet
    } else if (magnitude >= 0x47800000u) {
      half = 0x7c00u;  // 65536 and above
    } else if (magnitude >= 0x38800000u) {
      // Normal: re-bias the exponent from 127 to 15; rounding may carry up into infinity, as it should.
      half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    } else if (magnitude > 0x33000000u) {
      // Subnormal: the 24-bit significand moves right until its unit is 2^-24, nearest even.
      const std::uint32_t shift = 126u - (magnitude >> 23);
      const std::uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
      const std::uint32_t remainder = significand & ((1u << shift) - 1u);
      const std::uint32_t midpoint = 1u << (shift - 1u);
      half = significand >> shift;
      if (remainder > midpoint || (remainder == midpoint && (half & 1u))) ++half;
    }
    bits = static_cast<std::uint16_t>(sign | half);
  }
  constexpr explicit operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fu;
    const std::uint32_t fraction = bits & 0x3ffu;
    if (exponent == 0) {
      const float value = static_cast<float>(fraction) * 0x1p-24f;
      return sign ? -value : value;
    }
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
  }
};

// dtype_of<float> == DType::f32; a type without an entry does not compile.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

}  // namespace headroom
