#include "attention/cuda/intervals/bf16x3.h"

#include "attention/cuda/steps.h"
#include "attention/implementations.h"

namespace headroom {
namespace cuda {

#if !defined(HEADROOM_WITH_CUDA)
const IntervalKernels& bf16x3_kernels() {
  fail(ErrorKind::runtime, "this build has no CUDA kernels; configure with the cuda preset");
}
#endif

}  // namespace cuda

namespace {

Support supports(const AttentionProblem& problem, const DeviceDescription& device) {
  if (Support support = cuda::supports_intervals(problem, device); !support) return support;
  if (device.compute_major != 9 || device.compute_minor != 0) {
    return Support::no(fmt::format("needs compute capability 9.0, this is {}.{}", device.compute_major,
                                   device.compute_minor));
  }
  if (problem.dtype != DType::f32) return Support::no(fmt::format("takes f32, not {}", name(problem.dtype)));
  // Smaller heads would be padded to 64, where tf32x3 is faster; three parts of larger ones do not fit shared
  // memory.
  constexpr std::int64_t kLeast = 40;
  constexpr std::int64_t kMost = 128;
  if (problem.head_dim < kLeast || problem.head_dim > kMost) {
    return Support::no(fmt::format("takes head_dim {} to {}, not {}", kLeast, kMost, problem.head_dim));
  }
  return Support::yes();
}

}  // namespace

const AttentionImplementation& bf16x3_attention() {
  static constexpr AttentionImplementation kBf16x3{
      "bf16x3",
      supports,
      [](const AttentionProblem& problem, const DeviceDescription&, Pass pass) {
        return cuda::interval_workspace_bytes(problem, pass);
      },
      [](const AttentionProblem&) -> std::int64_t { return 0; },
      [](const AttentionProblem& problem, const AttentionForward& views, TensorView workspace,
         const Stream& stream) {
        cuda::forward_steps(problem, views, workspace, cuda::bf16x3_kernels(), stream);
      },
      [](const AttentionProblem& problem, const AttentionBackward& views, TensorView workspace,
         const Stream& stream) {
        cuda::backward_steps(problem, views, workspace, cuda::bf16x3_kernels(), stream);
      }};
  return kBf16x3;
}

}  // namespace headroom
