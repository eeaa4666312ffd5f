// As kernels_on_host.cpp, for attention: its portable row runs on the host.
#include "cuda/on_host.h"
// Kernels come after what they need of the language.
#include "attention/cuda/intervals/portable.cu"
#include "attention/cuda/merge.cu"
#include "attention/cuda/shared.cu"
#include "attention/cuda/sm90/plan.h"
#include "headroom/core/error.h"

namespace headroom {
namespace {

[[noreturn]] void fail_absent() {
  fail(ErrorKind::runtime, "this kernel does not run on the host");
}

}  // namespace

namespace cuda {

const IntervalKernels& tf32x3_kernels() {
  fail_absent();
}
const IntervalKernels& tf32_kernels() {
  fail_absent();
}
const IntervalKernels& bf16x3_kernels() {
  fail_absent();
}

namespace sm90 {

void forward(const AttentionProblem&, const AttentionForward&, const TensorView&, const Stream&) {
  fail_absent();
}
void backward(const AttentionProblem&, const AttentionBackward&, const TensorView&, const Stream&) {
  fail_absent();
}

}  // namespace sm90
}  // namespace cuda
}  // namespace headroom
