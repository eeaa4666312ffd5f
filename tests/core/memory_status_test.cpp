#include "headroom/core/memory_status.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "headroom/core/error.h"

namespace headroom {
namespace {

TEST(MemoryStatus, ARefusalHasTheArithmeticAndTheNames) {
  // Seed 000's GPU: 592 MiB free of 7.88 GiB, two other processes.
  const MemoryStatus memory{.total_bytes = 8461230000,
                            .free_bytes = 592 << 20,
                            .held_by_others_bytes = 290 << 20,
                            .holders = {{4050264, "python", 274 << 20}, {3093175, "Xorg", 16 << 20}}};
  check_free(memory, 592 << 20, "cuda:0");
  try {
    check_free(memory, 1024 << 20, "cuda:0");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::memory);
    EXPECT_STREQ(
        error.what(),
        "1 GiB (1,073,741,824 bytes) are needed and 592 MiB of 7.88 GiB are free on cuda:0; held by others "
        "290 MiB; most: python [4050264] 274 MiB, Xorg [3093175] 16 MiB");
  }
}

TEST(MemoryStatus, NamesTheLargest) {
  std::vector<MemoryHolder> holders = {{1, {}, 10}, {getpid(), {}, 40}, {2, {}, 20}, {999'999'999, {}, 30}};
  name_largest(holders);
  ASSERT_EQ(holders.size(), 3U);
  EXPECT_EQ(holders[0].process, getpid());
  EXPECT_EQ(holders[0].name, "test_core");
  EXPECT_EQ(holders[1].name, "process");  // nobody has that number
}

}  // namespace
}  // namespace headroom
