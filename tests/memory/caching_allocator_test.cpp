#include "headroom/memory/caching_allocator.h"

#include <gtest/gtest.h>

#include <vector>

#include "headroom/core/bytes.h"

namespace headroom {
namespace {

using Blocks = std::vector<BlockLifetime>;

TEST(CachingAllocator, RoundsAndChoosesSegments) {
  // 1 byte is a 512-byte block of a 2 MiB segment.
  const auto tiny = simulate_caching_allocator(Blocks{{0, 1, 1}});
  EXPECT_EQ(tiny.allocated_peak_bytes, 512);
  EXPECT_EQ(tiny.reserved_peak_bytes, 2 * kMiB);
  // Over 1 MiB and below 10 MiB: a 20 MiB segment, split.
  const auto middle = simulate_caching_allocator(Blocks{{0, 1, 3 * kMiB}, {0, 1, 9 * kMiB}});
  EXPECT_EQ(middle.allocated_peak_bytes, 12 * kMiB);
  EXPECT_EQ(middle.reserved_peak_bytes, 20 * kMiB);
  EXPECT_EQ(middle.segments, 1);
  // 10 MiB and more: a segment of its own in steps of 2 MiB. What is left is too small to split off, so the
  // allocation counts whole.
  const auto large = simulate_caching_allocator(Blocks{{0, 1, 11 * kMiB + 1}});
  EXPECT_EQ(large.reserved_peak_bytes, 12 * kMiB);
  EXPECT_EQ(large.allocated_peak_bytes, 12 * kMiB);
  EXPECT_EQ(simulate_caching_allocator(Blocks{{0, 1, 0}}).reserved_peak_bytes, 0);
}

TEST(CachingAllocator, SplitsOffWhatIsLeftAsPyTorchDoes) {
  // In the large pool what is left has to be over 1 MiB (should_split: remaining > kSmallSize). Exactly 1 MiB
  // stays with the block, which counts whole.
  const auto exact = simulate_caching_allocator(Blocks{{0, 1, 11 * kMiB}});
  EXPECT_EQ(exact.allocated_peak_bytes, 12 * kMiB);
  EXPECT_EQ(exact.reserved_peak_bytes, 12 * kMiB);
  // 512 bytes more are left: they are split off, and a later request finds them.
  const auto over = simulate_caching_allocator(Blocks{{0, 1, 11 * kMiB - 512}});
  EXPECT_EQ(over.allocated_peak_bytes, 11 * kMiB - 512);
  const auto reused = simulate_caching_allocator(Blocks{{0, 9, 11 * kMiB - 512}, {1, 9, kMiB + 512}});
  EXPECT_EQ(reused.segments, 1);
  EXPECT_EQ(simulate_caching_allocator(Blocks{{0, 9, 11 * kMiB}, {1, 9, kMiB + 512}}).segments, 2);
  // In the small pool 512 bytes are enough (remaining >= kMinBlockSize).
  const auto small = simulate_caching_allocator(Blocks{{0, 9, kMiB}, {1, 9, kMiB - 512}, {2, 9, 512}});
  EXPECT_EQ(small.allocated_peak_bytes, 2 * kMiB);
  EXPECT_EQ(small.reserved_peak_bytes, 2 * kMiB);
}

TEST(CachingAllocator, TakesTheBestFitAndMerges) {
  // Two freed blocks beside each other become one piece that a larger request can use.
  const auto merged = simulate_caching_allocator(
      Blocks{{0, 10, 2 * kMiB}, {1, 3, 4 * kMiB}, {2, 4, 4 * kMiB}, {5, 10, 8 * kMiB}, {6, 10, 8 * kMiB}});
  EXPECT_EQ(merged.segments, 1);
  EXPECT_EQ(merged.reserved_peak_bytes, 20 * kMiB);
  // A free piece of 16 MiB serves 12 MiB; the next 12 MiB need a segment of their own: this is fragmentation.
  const auto fragmented =
      simulate_caching_allocator(Blocks{{0, 2, 16 * kMiB}, {3, 9, 12 * kMiB}, {4, 9, 12 * kMiB}});
  EXPECT_EQ(fragmented.allocated_peak_bytes, 24 * kMiB);
  EXPECT_EQ(fragmented.reserved_peak_bytes, 28 * kMiB);
}

TEST(CachingAllocator, GivesBackBeforeItFails) {
  // 20 MiB cached and idle, 30 MiB asked, 40 MiB there: the idle segment goes back.
  const Blocks blocks = {{0, 1, 20 * kMiB}, {2, 3, 30 * kMiB}};
  EXPECT_EQ(simulate_caching_allocator(blocks).reserved_peak_bytes, 50 * kMiB);
  const auto fits = simulate_caching_allocator(blocks, 40 * kMiB);
  EXPECT_FALSE(fits.failed_block);
  EXPECT_EQ(fits.reserved_peak_bytes, 30 * kMiB);
  const auto fails = simulate_caching_allocator(blocks, 25 * kMiB);
  ASSERT_TRUE(fails.failed_block);
  EXPECT_EQ(*fails.failed_block, 1U);
  EXPECT_EQ(fails.failed_bytes, 30 * kMiB);
}

}  // namespace
}  // namespace headroom
