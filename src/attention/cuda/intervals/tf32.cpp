#include "attention/cuda/intervals/tf32.h"

#include "attention/cuda/intervals/portable.h"
#include "attention/cuda/steps.h"
#include "attention/implementations.h"

namespace headroom {
namespace cuda {

#if !defined(HEADROOM_WITH_CUDA)
const IntervalKernels& tf32x3_kernels() {
  fail(ErrorKind::runtime, "this build has no CUDA kernels; configure with the cuda preset");
}
const IntervalKernels& tf32_kernels() {
  return tf32x3_kernels();
}
#endif

}  // namespace cuda

namespace {

Support supports(const AttentionProblem& problem, const DeviceDescription& device) {
  if (device.kind != DeviceKind::cuda) return Support::no("runs on CUDA GPUs only");
  if (device.compute_major < 8) {
    return Support::no(fmt::format("needs compute capability 8.0, this is {}.{}", device.compute_major,
                                   device.compute_minor));
  }
  if (problem.dtype != DType::f32) return Support::no(fmt::format("takes f32, not {}", name(problem.dtype)));
  constexpr std::int64_t kWideTiles = 160 << 10;  // forward of head_dim 256 holds 126 KiB
  if (problem.head_dim > 128 && cuda::block_shared_bytes(device) < kWideTiles) {
    return Support::no(fmt::format("head_dim {} needs more shared memory than compute capability {}.{} has",
                                   problem.head_dim, device.compute_major, device.compute_minor));
  }
  return cuda::supports_intervals(problem, device);
}

std::int64_t workspace_bytes(const AttentionProblem& problem, const DeviceDescription&, Pass pass) {
  return cuda::interval_workspace_bytes(problem, pass);
}

template <const cuda::IntervalKernels& (*Kernels)()>
void forward(const AttentionProblem& problem, const AttentionForward& views, TensorView workspace,
             const Stream& stream) {
  cuda::forward_steps(problem, views, workspace, Kernels(), stream);
}

template <const cuda::IntervalKernels& (*Kernels)()>
void backward(const AttentionProblem& problem, const AttentionBackward& views, TensorView workspace,
              const Stream& stream) {
  cuda::backward_steps(problem, views, workspace, Kernels(), stream);
}

std::int64_t saved_bytes(const AttentionProblem&) {
  return 0;
}

}  // namespace

const AttentionImplementation& tf32x3_attention() {
  static constexpr AttentionImplementation kTf32x3{"tf32x3",
                                                   supports,
                                                   workspace_bytes,
                                                   saved_bytes,
                                                   forward<cuda::tf32x3_kernels>,
                                                   backward<cuda::tf32x3_kernels>};
  return kTf32x3;
}

const AttentionImplementation& tf32_attention() {
  static constexpr AttentionImplementation kTf32{"tf32",
                                                 supports,
                                                 workspace_bytes,
                                                 saved_bytes,
                                                 forward<cuda::tf32_kernels>,
                                                 backward<cuda::tf32_kernels>,
                                                 /*only_when_named=*/true};
  return kTf32;
}

}  // namespace headroom
