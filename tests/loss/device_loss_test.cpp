// The loss on a GPU whose kernels run on the host, on the shared list of cases.
#include <gtest/gtest.h>

#include "loss_cases.h"

namespace headroom {
namespace {

TEST(LossOnHost, WithinThePlainComputation) {
  const DeviceDescription gpu{.kind = DeviceKind::cuda, .name = "on host", .cores = 2};
  int served = 0;
  for (const LossCase& c : loss_cases()) {
    const LossProblem& p = c.problem;
    if (p.tokens * p.hidden * p.vocab > 1'500'000 || !serves(c, "fused-cuda", gpu)) continue;
    ++served;
    EXPECT_LE(PreparedLossCase(c).judge("fused-cuda", gpu).worst(), 1) << c.group << ": " << c.name;
  }
  EXPECT_GT(served, 40);
}

}  // namespace
}  // namespace headroom
