#include <gtest/gtest.h>

#include <memory>

#include "attention/small_cases.h"
#include "cuda/gpu_test.h"
#include "headroom/attention.h"
#include "ring_cases.h"

namespace headroom {
namespace {

class CudaAttentionSmall : public GpuTest, public testing::WithParamInterface<SmallCase> {};

TEST_P(CudaAttentionSmall, WithinThePlainComputation) {
  CudaBackend gpu(0);
  const CaseDevice device{.description = gpu.description(), .backend = &gpu};
  const AttentionCase& c = GetParam().c;
  const auto chosen = choose(attention_implementations(), c.problem, gpu.description()).implementation;
  ASSERT_NE(chosen, nullptr);
  if (gpu.description().compute_major == 9) {
    EXPECT_EQ(chosen->name, c.problem.dtype == DType::f32 ? "bf16x3" : "sm90");
  }
  EXPECT_LE(run_attention_case(c, *chosen, 8, device).worst(), 1) << chosen->name;
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaAttentionSmall, testing::ValuesIn(small_cases()),
                         [](const auto& given) { return given.param.name; });

class CudaAttentionRings : public GpuTest {};

// Chunks of several tiles that go on from each other, with every size of heads: on Hopper each in kernels of
// its own.
TEST_F(CudaAttentionRings, OfLargerHeads) {
  int ran = 0;
  for (const RingCase& c : ring_cases()) {
    if (c.attention.group != "larger heads") continue;
    ++ran;
    EXPECT_LE(run_ring_case(c, [](int) { return std::make_unique<CudaBackend>(0); }).worst(), 1) << c.name();
  }
  EXPECT_GE(ran, 10);
}

}  // namespace
}  // namespace headroom
