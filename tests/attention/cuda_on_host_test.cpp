// The CUDA kernels' own sources, run thread by thread on the CPU, on the shared list of cases: what they
// compute is right before a GPU sees them.
#include "cuda/on_host.h"
// Kernels come after what they need of the language.
#include <gtest/gtest.h>

#include "attention/cuda/portable-inl.h"
#include "attention/cuda/steps.h"
#include "attention/cuda/tf32-inl.h"
#include "attention_cases.h"

namespace headroom::cuda {
namespace {

const IntervalKernels kPortable = make_portable_kernels();
const IntervalKernels kTf32x3 = make_tf32_kernels<3>(kPortable);
const IntervalKernels kTf32 = make_tf32_kernels<1>(kPortable);

// A row of the table with its launches on the host.
template <const IntervalKernels& Kernels>
AttentionImplementation on_host(std::string_view name) {
  AttentionImplementation row = find_attention(name);
  row.forward = [](const AttentionProblem& problem, const AttentionForward& views, TensorView workspace,
                   const Stream& stream) { forward_steps(problem, views, workspace, Kernels, stream); };
  row.backward = [](const AttentionProblem& problem, const AttentionBackward& views, TensorView workspace,
                    const Stream& stream) { backward_steps(problem, views, workspace, Kernels, stream); };
  return row;
}

// Every step-th case; how many were served.
int run_cases(const AttentionImplementation& row, int major, int minor, std::size_t step) {
  const CaseDevice gpu{
      .description = {
          .kind = DeviceKind::cuda, .name = "on host", .compute_major = major, .compute_minor = minor}};
  int served = 0;
  const std::vector<AttentionCase> cases = attention_cases();
  for (std::size_t i = 0; i < cases.size(); i += step) {
    const AttentionCase& c = cases[i];
    if (c.group == "large" || !row.supports(c.problem, gpu.description)) continue;
    ++served;
    EXPECT_LE(run_attention_case(c, row, 2, gpu).worst(), 1) << c.group << ": " << c.name;
  }
  return served;
}

// Compute capability 6 has the small tiles, 9 the large ones.
TEST(CudaOnHost, PortableWithinThePlainComputation) {
  EXPECT_GT(run_cases(on_host<kPortable>("portable"), 6, 1, 11), 30);
  EXPECT_GT(run_cases(on_host<kPortable>("portable"), 9, 0, 7), 50);
}

// Rounds towards zero where tensor cores are known to; 8.6 has smaller tiles.
TEST(CudaOnHost, Tf32x3WithinThePlainComputation) {
  EXPECT_GT(run_cases(on_host<kTf32x3>("tf32x3"), 9, 0, 11), 10);
  EXPECT_GT(run_cases(on_host<kTf32x3>("tf32x3"), 8, 6, 37), 3);
}

// Against a plain computation on operands rounded to tf32.
TEST(CudaOnHost, Tf32WithinThePlainComputation) {
  EXPECT_GT(run_cases(on_host<kTf32>("tf32"), 9, 0, 29), 4);
}

}  // namespace
}  // namespace headroom::cuda
