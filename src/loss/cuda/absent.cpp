// The kernels of a build without CUDA: they can be planned with, and fail when they would run.
#include "headroom/core/error.h"
#include "loss/cuda/slice.h"
#include "loss/cuda/softmax.h"

namespace headroom::cuda {
namespace {

[[noreturn]] void fail_absent() {
  fail(ErrorKind::runtime, "this build has no CUDA kernels; configure with the cuda preset");
}

}  // namespace

void loss_divisor(const LossProblem&, const LossLabels&, const LossScratch&, const Stream&) {
  fail_absent();
}
void softmax_loss(const LossProblem&, const LossLabels&, const LossScratch&, const TensorView&, std::int64_t,
                  const TensorView&, const Stream&) {
  fail_absent();
}
void loss_total(const LossProblem&, const LossScratch&, const TensorView&, const Stream&) {
  fail_absent();
}
void place_labels(const LossLabels&, std::int64_t, const TensorView&, const Stream&) {
  fail_absent();
}
void slice_statistics(const SliceCall&, const SliceChunk&, const TensorView&, const Stream&) {
  fail_absent();
}
void slice_judge(const SliceCall&, const LossLabels&, const LossScratch&, const TensorView&, std::int64_t,
                 const SliceChunk&, Pass, const Stream&) {
  fail_absent();
}
void slice_gradients(const SliceCall&, const SliceChunk&, const TensorView&, const Stream&) {
  fail_absent();
}

}  // namespace headroom::cuda
