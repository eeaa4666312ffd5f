#include "train/permutation.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace headroom {
namespace {

std::vector<std::int64_t> listed(const Permutation& permutation, std::int64_t size) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < size; ++i) all.push_back(permutation(i));
  return all;
}

TEST(Permutation, EveryPlaceHoldsADifferentValueInside) {
  for (const std::int64_t size : {1, 2, 3, 7, 8, 63, 64, 65, 100, 255, 256, 257, 1000, 4096, 5000}) {
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      const std::vector<std::int64_t> all = listed(Permutation(Random(5, epoch), size), size);
      const std::set<std::int64_t> different(all.begin(), all.end());
      EXPECT_EQ(std::ssize(different), size);
      EXPECT_EQ(*different.begin(), 0);
      EXPECT_EQ(*different.rbegin(), size - 1);
    }
  }
}

TEST(Permutation, SizesPastThirtyTwoBitsStayInside) {
  for (const std::int64_t size : {(std::int64_t{1} << 40) + 3, std::int64_t{1} << 62}) {
    const Permutation permutation(Random(1), size);
    std::set<std::int64_t> different;
    for (std::int64_t i = 0; i < 200; ++i) {
      const std::int64_t value = permutation(size - 1 - i);
      ASSERT_GE(value, 0);
      ASSERT_LT(value, size);
      different.insert(value);
    }
    EXPECT_EQ(different.size(), 200u);
    EXPECT_LT(*different.begin(), size / 8);
    EXPECT_GT(*different.rbegin(), size / 8 * 7);
  }
}

TEST(Permutation, OrdersDifferBetweenStreamsAndSeeds) {
  const std::vector<std::int64_t> first = listed(Permutation(Random(1, 0), 50), 50);
  EXPECT_EQ(first, listed(Permutation(Random(1, 0), 50), 50));
  EXPECT_NE(first, listed(Permutation(Random(1, 1), 50), 50));
  EXPECT_NE(first, listed(Permutation(Random(2, 0), 50), 50));
}

TEST(Permutation, EveryValueComesToEveryPlaceAboutEquallyOften) {
  constexpr std::int64_t kSize = 7;
  constexpr int kOrders = 7000;
  std::vector<std::vector<int>> count(kSize, std::vector<int>(kSize));
  std::set<std::vector<std::int64_t>> orders;
  for (std::uint64_t stream = 0; stream < kOrders; ++stream) {
    const std::vector<std::int64_t> all = listed(Permutation(Random(9, stream), kSize), kSize);
    for (std::size_t place = 0; place < all.size(); ++place) {
      ++count[place][static_cast<std::size_t>(all[place])];
    }
    orders.insert(all);
  }
  for (const std::vector<int>& place : count) {
    for (const int times : place) EXPECT_NEAR(times, 1000, 150);  // five standard deviations
  }
  // 7000 draws of 5040 orders: 75 in 100 of them come up.
  EXPECT_NEAR(static_cast<double>(orders.size()), 5040 * 0.75, 200);
}

}  // namespace
}  // namespace headroom
