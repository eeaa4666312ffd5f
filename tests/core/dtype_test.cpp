#include "headroom/core/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "headroom/core/error.h"
#include "headroom/core/random.h"

namespace headroom {
namespace {

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_bytes(DType::f32), 4);
  EXPECT_EQ(size_bytes(DType::bf16), 2);
  EXPECT_EQ(size_bytes(DType::f16), 2);
  EXPECT_EQ(size_bytes(DType::f64), 8);
  EXPECT_EQ(size_bytes(DType::i32), 4);
  EXPECT_EQ(size_bytes(DType::u8), 1);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) EXPECT_EQ(parse_dtype(name(dtype)), dtype);
  EXPECT_THROW(static_cast<void>(parse_dtype("f64")), Error);  // the references' own
  EXPECT_THROW(static_cast<void>(parse_dtype("fp16")), Error);
}

TEST(DType, EveryHalfSurvivesTheRoundTrip) {
  for (std::uint32_t i = 0; i <= 0xffff; ++i) {
    Float16 half;
    half.bits = static_cast<std::uint16_t>(i);
    BFloat16 brain;
    brain.bits = half.bits;
    const auto half_value = static_cast<float>(half);
    const auto brain_value = static_cast<float>(brain);
    if (std::isnan(half_value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(Float16(half_value))));
    } else {
      ASSERT_EQ(Float16(half_value).bits, i);
    }
    if (std::isnan(brain_value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(brain_value))));
    } else {
      ASSERT_EQ(BFloat16(brain_value).bits, i);
    }
  }
}

// Round to nearest even, by search: the neighbours below and above, and the one that is closer.
template <class Half>
void expect_nearest(float value) {
  const Half rounded(value);
  const auto result = static_cast<float>(rounded);
  ASSERT_FALSE(std::isnan(result)) << value;
  const auto error = std::abs(static_cast<double>(result) - value);
  for (const int step : {-1, 1}) {
    Half neighbour;
    neighbour.bits = static_cast<std::uint16_t>(rounded.bits + step);
    const auto other = static_cast<float>(neighbour);
    if (std::isnan(other) || std::signbit(other) != std::signbit(value)) continue;
    const auto other_error = std::abs(static_cast<double>(other) - value);
    // Infinity stands where the next number would be.
    if (std::isinf(result) || std::isinf(other)) continue;
    ASSERT_LE(error, other_error) << value;
    if (error == other_error) {
      ASSERT_EQ(rounded.bits & 1, 0) << value;
    }
  }
}

TEST(DType, RoundsToNearestEven) {
  const Random random(11);
  for (std::uint64_t i = 0; i < 200'000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random.bits(i)));
    if (!std::isfinite(value)) continue;
    expect_nearest<BFloat16>(value);
    // Half precision: exponents from below its subnormals to above its range.
    expect_nearest<Float16>(std::ldexp(std::fmod(value, 2.0F), static_cast<int>(i % 45) - 28));
  }
  // Ties, at the edges: between the largest number and infinity, between zero and the smallest.
  EXPECT_EQ(Float16(65519.99F).bits, 0x7bff);
  EXPECT_EQ(Float16(65520.0F).bits, 0x7c00);
  EXPECT_EQ(Float16(0x1p-25F).bits, 0);
  EXPECT_EQ(Float16(0x1.000002p-25F).bits, 1);
  EXPECT_EQ(Float16(-0.0F).bits, 0x8000);
  EXPECT_EQ(Float16(std::numeric_limits<float>::infinity()).bits, 0x7c00);
  EXPECT_EQ(BFloat16(0x1.01p0F).bits, 0x3f80);      // tie, even below
  EXPECT_EQ(BFloat16(0x1.03p0F).bits, 0x3f82);      // tie, even above
  EXPECT_EQ(BFloat16(0x1.010002p0F).bits, 0x3f81);  // just over the tie
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace headroom
