#include "attention/cuda/intervals/portable.h"

#include "attention/cuda/steps.h"
#include "attention/implementations.h"

namespace headroom {
namespace cuda {

std::int64_t block_shared_bytes(const DeviceDescription& device) {
  constexpr std::int64_t kKiB = 1024;
  const int capability = device.compute_major * 10 + device.compute_minor;
  if (capability < 70) return 48 * kKiB;
  if (capability < 75) return 96 * kKiB;
  if (capability < 80) return 64 * kKiB;
  if (capability == 80 || capability == 87) return 163 * kKiB;
  if (capability < 90 || capability >= 120) return 99 * kKiB;
  return 227 * kKiB;
}

#if !defined(HEADROOM_WITH_CUDA)
const IntervalKernels& portable_kernels() {
  fail(ErrorKind::runtime, "this build has no CUDA kernels; configure with the cuda preset");
}
#endif

}  // namespace cuda

namespace {

Support supports(const AttentionProblem& problem, const DeviceDescription& device) {
  if (device.kind == DeviceKind::cuda && device.compute_major < 6) {
    return Support::no(fmt::format("needs compute capability 6.0, this is {}.{}", device.compute_major,
                                   device.compute_minor));
  }
  return cuda::supports_intervals(problem, device);
}

std::int64_t workspace_bytes(const AttentionProblem& problem, const DeviceDescription&, Pass pass) {
  return cuda::interval_workspace_bytes(problem, pass);
}

void forward(const AttentionProblem& problem, const AttentionForward& views, TensorView workspace,
             const Stream& stream) {
  cuda::forward_steps(problem, views, workspace, cuda::portable_kernels(), stream);
}

void backward(const AttentionProblem& problem, const AttentionBackward& views, TensorView workspace,
              const Stream& stream) {
  cuda::backward_steps(problem, views, workspace, cuda::portable_kernels(), stream);
}

}  // namespace

const AttentionImplementation& portable_attention() {
  static constexpr AttentionImplementation kPortable{
      "portable", supports, workspace_bytes, [](const AttentionProblem&) -> std::int64_t { return 0; },
      forward,    backward};
  return kPortable;
}

}  // namespace headroom
