#include "headroom/memory/packer.h"

#include <gtest/gtest.h>

#include "headroom/core/error.h"
#include "headroom/core/random.h"
#include "headroom/memory/layout.h"
#include "memory/packing_checker.h"
#include "traces.h"

namespace headroom {
namespace {

using Blocks = std::vector<BlockLifetime>;

TEST(PackingChecker, SeesFaults) {
  const Blocks blocks = {{0, 2, 100}, {1, 3, 100}};
  EXPECT_FALSE(packing_fault(blocks, {{0, 256}, 512}, 256));
  EXPECT_TRUE(packing_fault(blocks, {{0, 0}, 256}, 256));     // overlap
  EXPECT_TRUE(packing_fault(blocks, {{0, 64}, 256}, 64));     // overlap from above
  EXPECT_TRUE(packing_fault(blocks, {{0, 100}, 256}, 256));   // not aligned
  EXPECT_TRUE(packing_fault(blocks, {{0, 256}, 256}, 256));   // size too small
  EXPECT_TRUE(packing_fault(blocks, {{0, 256}, 1024}, 256));  // size too large
  EXPECT_TRUE(packing_fault(blocks, {{0}, 256}, 256));
}

TEST(Packer, DegenerateTraces) {
  EXPECT_EQ(pack(Blocks{}).bytes, 0);
  EXPECT_EQ(pack(Blocks{{0, 5, 0}}).bytes, 0);
  EXPECT_EQ(pack(Blocks{{5, 5, 100}}).bytes, 0);  // never alive
  EXPECT_EQ(pack(Blocks{{0, 1, 1}}).bytes, 256);
  EXPECT_EQ(pack(Blocks{{0, 1, 1}}, 64).bytes, 64);
  EXPECT_EQ(pack(Blocks{{0, 1, 300}, {1, 2, 300}}).bytes, 512);  // one ends where the other begins
  EXPECT_EQ(pack(Blocks(50, {0, 10, 256})).bytes, 50 * 256);     // identical lifetimes
  EXPECT_EQ(pack(Blocks{{-10, 1'000'000'000'000, 256}, {5, 6, 1}}).bytes, 512);  // any unit of time
  EXPECT_THROW(static_cast<void>(pack(Blocks{{0, 1, -1}})), Error);
  EXPECT_THROW(static_cast<void>(pack(Blocks{{0, 1, 1}}, 0)), Error);
  EXPECT_THROW(static_cast<void>(pack(Blocks(3, {0, 1, std::int64_t{1} << 62}))), Error);
}

TEST(Packer, NeverOverlapsWhateverTheTrace) {
  const Random random(21);
  std::uint64_t draw = 0;
  const auto below = [&](std::uint64_t bound) {
    return static_cast<std::int64_t>(random.below(draw++, bound));
  };
  for (int round = 0; round < 600; ++round) {
    const std::int64_t alignment = std::int64_t{1} << below(10);
    Blocks blocks(static_cast<std::size_t>(below(80)));
    const auto moments = static_cast<std::uint64_t>(1 + below(60));
    for (BlockLifetime& block : blocks) {
      block = {below(moments), below(moments), below(3) == 0 ? below(100'000) : below(600)};
    }
    const Packing packing = pack(blocks, alignment);
    const auto fault = packing_fault(blocks, packing, alignment);
    ASSERT_FALSE(fault) << "round " << round << ": " << *fault;
    ASSERT_GE(packing.bytes, live_peak(blocks));
    const auto first_fit_fault = packing_fault(blocks, first_fit(blocks, alignment), alignment);
    ASSERT_FALSE(first_fit_fault) << "first fit, round " << round << ": " << *first_fit_fault;
    ASSERT_EQ(pack(blocks, alignment).offsets, packing.offsets) << "not deterministic";
  }
}

TEST(Packer, TrainingStepsWithinTwoPercent) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Ledger ledger = training_step_ledger(2 + static_cast<std::int64_t>(seed), seed);
    const std::vector<BlockLifetime> blocks = lifetimes(ledger, Space::device);
    const Packing packing = pack(blocks);
    ASSERT_FALSE(packing_fault(blocks, packing, kArenaAlignment)) << seed;
    const auto live = static_cast<double>(live_peak(blocks));
    EXPECT_LE(static_cast<double>(packing.bytes), 1.02 * live) << seed;
    // The layout keeps blocks of the run apart and packs phase by phase: the same bar holds for what is
    // reserved.
    EXPECT_LE(static_cast<double>(make_layout(ledger).reserved(Space::device)), 1.02 * live) << seed;
  }
}

}  // namespace
}  // namespace headroom
