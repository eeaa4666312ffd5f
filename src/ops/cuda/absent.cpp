// The kernels of a build without CUDA: they can be planned with, and fail when they would run.
#include "headroom/core/error.h"
#include "ops/cuda/ops.h"
#include "ops/matmul.h"
#include "ops/random_fill.h"

namespace headroom {
namespace {

[[noreturn]] void fail_absent() {
  fail(ErrorKind::runtime, "this build has no CUDA kernels; configure with the cuda preset");
}

}  // namespace

void product_cuda(const Product&, TensorView, const Stream&) {
  fail_absent();
}
void random_fill_cuda(const RandomFill&, TensorView, const Stream&) {
  fail_absent();
}

namespace cuda {

void rms_norm_forward(const RmsNormForward&, float, const Stream&) {
  fail_absent();
}
void rms_norm_backward(const RmsNormBackward&, Store, const TensorView&, const Stream&) {
  fail_absent();
}
void rope(const TensorView&, const TensorView&, const RopeFrequencies&, Pass, const Stream&) {
  fail_absent();
}
void rms_norm_rope_forward(const RmsNormForward&, float, const RopeCall&, const Stream&) {
  fail_absent();
}
void rms_norm_rope_backward(const RmsNormBackward&, Store, const RopeCall&, const TensorView&,
                            const Stream&) {
  fail_absent();
}
void swiglu_forward(const TensorView&, const TensorView&, const TensorView&, const Stream&) {
  fail_absent();
}
void swiglu_backward(const SwigluBackward&, const Stream&) {
  fail_absent();
}
void embedding_forward(const TensorView&, const TensorView&, const TensorView&, const Stream&) {
  fail_absent();
}
void embedding_backward(const TensorView&, const TensorView&, const TensorView&, std::int32_t,
                        const TensorView&, const Stream&) {
  fail_absent();
}
void add(const TensorView&, const TensorView&, const TensorView&, const Stream&) {
  fail_absent();
}
void fill(const TensorView&, float, const Stream&) {
  fail_absent();
}
void zero(const TensorView&, const Stream&) {
  fail_absent();
}
void convert(const TensorView&, const TensorView&, const Stream&) {
  fail_absent();
}
void sum_of_squares(const TensorView&, const TensorView&, Store, const TensorView&, const Stream&) {
  fail_absent();
}
void clip_factor(const ClipFactor&, const Clipping&, const Stream&) {
  fail_absent();
}
void adamw(const AdamWViews&, const AdamWFactors&, const Stream&) {
  fail_absent();
}
void adamw_narrow(const NarrowUpdate&, const Stream&) {
  fail_absent();
}

}  // namespace cuda
}  // namespace headroom
