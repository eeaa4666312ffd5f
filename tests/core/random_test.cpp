#include "headroom/core/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace headroom {
namespace {

// Known answers of Philox4x32-10, published with the algorithm.
TEST(Random, KnownAnswers) {
  const Philox zero = philox({{0, 0, 0, 0}}, 0);
  EXPECT_EQ(zero.word[0], 0x6627e8d5U);
  EXPECT_EQ(zero.word[1], 0xe169c58dU);
  EXPECT_EQ(zero.word[2], 0xbc57ac4cU);
  EXPECT_EQ(zero.word[3], 0x9b00dbd8U);
  constexpr std::uint32_t kOnes = 0xffffffffU;
  const Philox ones = philox({{kOnes, kOnes, kOnes, kOnes}}, ~std::uint64_t{0});
  EXPECT_EQ(ones.word[0], 0x408f276dU);
  EXPECT_EQ(ones.word[1], 0x41c83b0eU);
  EXPECT_EQ(ones.word[2], 0xa20bc7c6U);
  EXPECT_EQ(ones.word[3], 0x6d5451fdU);
  const Philox pi = philox({{0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}}, 0x299f31d0a4093822U);
  EXPECT_EQ(pi.word[0], 0xd16cfe09U);
  EXPECT_EQ(pi.word[1], 0x94fdccebU);
  EXPECT_EQ(pi.word[2], 0x5001e420U);
  EXPECT_EQ(pi.word[3], 0x24126ea1U);
}

TEST(Random, MomentsAndRanges) {
  constexpr std::uint64_t kDraws = 200'000;
  const Random random(5, 9);
  double sum = 0;
  double normal_sum = 0;
  double normal_square = 0;
  double normal_fourth = 0;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const double u = random.uniform(i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    const double n = random.normal(i);
    normal_sum += n;
    normal_square += n * n;
    normal_fourth += n * n * n * n;
    ASSERT_LT(random.below(i, 10), 10U);
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);
  EXPECT_NEAR(normal_sum / kDraws, 0, 0.01);
  EXPECT_NEAR(normal_square / kDraws, 1, 0.02);
  EXPECT_NEAR(normal_fourth / kDraws, 3, 0.15);
}

TEST(Random, SeedsAndStreamsAreIndependent) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    for (std::uint64_t stream = 0; stream < 8; ++stream) {
      for (std::uint64_t i = 0; i < 64; ++i) seen.insert(Random(seed, stream).bits(i));
    }
  }
  EXPECT_EQ(seen.size(), 8U * 8U * 64U);
}

}  // namespace
}  // namespace headroom
