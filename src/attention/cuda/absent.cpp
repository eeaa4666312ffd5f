// The launches of a build without CUDA: their rows can be planned with, and fail when they would run.
#include "attention/cuda/intervals/kernels.h"
#include "attention/cuda/merge.h"
#include "attention/cuda/shared.h"
#include "attention/cuda/sm90/plan.h"
#include "headroom/core/error.h"

namespace headroom {
namespace {

[[noreturn]] void absent() {
  fail(ErrorKind::runtime, "this build has no CUDA kernels; configure with the cuda preset");
}

}  // namespace

namespace cuda {

const SharedLaunches& shared_launches() {
  absent();
}
const IntervalKernels& portable_kernels() {
  absent();
}
const IntervalKernels& tf32x3_kernels() {
  absent();
}
const IntervalKernels& tf32_kernels() {
  absent();
}
const IntervalKernels& bf16x3_kernels() {
  absent();
}
void merge_partials(const MergeCall&, const Stream&) {
  absent();
}
void close_partial(const CloseCall&, const Stream&) {
  absent();
}

namespace sm90 {

void forward(const AttentionProblem&, const AttentionForward&, const TensorView&, const Stream&) {
  absent();
}
void backward(const AttentionProblem&, const AttentionBackward&, const TensorView&, const Stream&) {
  absent();
}

}  // namespace sm90
}  // namespace cuda
}  // namespace headroom
