#include <gtest/gtest.h>

#include <cstdlib>

#include "attention_cases.h"

namespace headroom {
namespace {

class AttentionLevels : public testing::TestWithParam<const char*> {};

// Every case on every SIMD level of the machine.
TEST_P(AttentionLevels, WholeList) {
  setenv("HEADROOM_SIMD", GetParam(), 1);
  int served = 0;
  for (const AttentionCase& c : attention_cases()) {
    if (!serves(c, "tiled")) continue;
    ++served;
    EXPECT_LE(run_attention_case(c, "tiled", 2).worst(), 1) << c.group << ": " << c.name;
  }
  EXPECT_GE(served, 300);
  unsetenv("HEADROOM_SIMD");
}

INSTANTIATE_TEST_SUITE_P(Simd, AttentionLevels, testing::Values("portable", "avx2", "avx512"));

}  // namespace
}  // namespace headroom
