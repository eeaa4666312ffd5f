#include <gtest/gtest.h>

#include "headroom/memory/layout.h"
#include "headroom/memory/packer.h"
#include "memory/packing_checker.h"
#include "traces.h"

namespace headroom {
namespace {

TEST(PackerLong, RandomTracesWithinTenPercent) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const std::vector<BlockLifetime> blocks = random_trace(10'000, seed);
    const Packing packing = pack(blocks);
    const auto fault = packing_fault(blocks, packing, kArenaAlignment);
    ASSERT_FALSE(fault) << "seed " << seed << ": " << *fault;
    EXPECT_LE(static_cast<double>(packing.bytes), 1.10 * static_cast<double>(live_peak(blocks))) << seed;
  }
}

TEST(PackerLong, TrainingStepsWithinTwoPercent) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Ledger ledger = training_step_ledger(2 + static_cast<std::int64_t>(seed % 99), seed);
    const std::vector<BlockLifetime> blocks = lifetimes(ledger, Space::device);
    const Packing packing = pack(blocks);
    const auto fault = packing_fault(blocks, packing, kArenaAlignment);
    ASSERT_FALSE(fault) << "seed " << seed << ": " << *fault;
    const auto live = static_cast<double>(live_peak(blocks));
    EXPECT_LE(static_cast<double>(packing.bytes), 1.02 * live) << seed;
    EXPECT_LE(static_cast<double>(make_layout(ledger).reserved(Space::device)), 1.02 * live) << seed;
  }
}

}  // namespace
}  // namespace headroom
