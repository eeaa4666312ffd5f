// The kernels of a build without CUDA: they can be planned with, and fail when they would run.
#include "headroom/core/error.h"
#include "parallel/cuda/rows.h"

namespace headroom::cuda {
namespace {

[[noreturn]] void fail_absent() {
  fail(ErrorKind::runtime, "this build has no CUDA kernels; configure with the cuda preset");
}

}  // namespace

void move_rows(RowMove, const RowBlocks&, const Stream&) {
  fail_absent();
}

void divide_block_lists(const BlockListPart&, const Stream&) {
  fail_absent();
}

}  // namespace headroom::cuda
