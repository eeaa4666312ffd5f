// The kernels of a build without CUDA: they can be planned with, and fail when they would run.
#include "headroom/core/error.h"
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

}  // namespace headroom
