// Attention over ranks that are threads, held to what attention on one rank is held to.
#include "headroom/parallel/ring_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "headroom/core/checked.h"
#include "headroom/cpu.h"
#include "parallel/drawn.h"
#include "ring_cases.h"
#include "ring_run.h"

namespace headroom {
namespace {

TEST(RingAttention, EqualsOneRankOnTheListOfCases) {
  int ran = 0;
  for (const RingCase& c : ring_cases()) {
    SCOPED_TRACE(c.attention.group + ": " + c.name());
    EXPECT_LE(run_ring_case(c).worst(), 1);
    ++ran;
  }
  EXPECT_GE(ran, 150);
}

}  // namespace
}  // namespace headroom
