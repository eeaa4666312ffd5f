// The CUDA kernels' own sources, run thread by thread on the CPU, on the shared list of cases: what they
// compute is right before a GPU sees them.
#include "cuda/on_host.h"
// Kernels come after what they need of the language.
#include <gtest/gtest.h>

#include "attention/cuda/portable-inl.h"
#include "attention/cuda/steps.h"
#include "attention_cases.h"

namespace headroom::cuda {
namespace {

const IntervalKernels& kernels() {
  static const IntervalKernels kKernels = make_portable_kernels();
  return kKernels;
}

AttentionImplementation on_host() {
  AttentionImplementation row = find_attention("portable");
  row.forward = [](const AttentionProblem& problem, const AttentionForward& views, TensorView workspace,
                   const Stream& stream) { forward_steps(problem, views, workspace, kernels(), stream); };
  row.backward = [](const AttentionProblem& problem, const AttentionBackward& views, TensorView workspace,
                    const Stream& stream) { backward_steps(problem, views, workspace, kernels(), stream); };
  return row;
}

class CudaOnHost : public testing::TestWithParam<int> {};

// Compute capability 6 has the small tiles, 9 the large ones.
TEST_P(CudaOnHost, WithinThePlainComputation) {
  const AttentionImplementation row = on_host();
  const CaseDevice gpu{
      .description = {
          .kind = DeviceKind::cuda, .name = "on host", .compute_major = GetParam(), .compute_minor = 0}};
  int served = 0;
  const std::vector<AttentionCase> cases = attention_cases();
  for (std::size_t i = 0; i < cases.size(); i += 3) {
    const AttentionCase& c = cases[i];
    if (c.group == "large" || !row.supports(c.problem, gpu.description)) continue;
    ++served;
    EXPECT_LE(run_attention_case(c, row, 2, gpu).worst(), 1) << c.group << ": " << c.name;
  }
  EXPECT_GT(served, 100);
}

INSTANTIATE_TEST_SUITE_P(Capability, CudaOnHost, testing::Values(6, 9));

}  // namespace
}  // namespace headroom::cuda
