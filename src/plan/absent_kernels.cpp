// The kernels of headroom_plan, which has none: what rows call when they run. A rehearsal never calls them.
#include "attention/cpu/kernels.h"
#include "headroom/core/error.h"
#include "headroom/cpu/thread_pool.h"
#include "loss/cpu/kernels.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/matmul_kernels.h"

namespace headroom {
namespace {

[[noreturn]] void refuse() {
  fail(ErrorKind::runtime, "this build plans and runs nothing; link headroom instead of headroom_plan");
}

}  // namespace

void parallel_for(const Stream&, std::int64_t, IndexFunction) {
  refuse();
}

namespace cpu {

const OpKernels& op_kernels(SimdLevel) {
  refuse();
}
const MatmulKernels& matmul_kernels(SimdLevel) {
  refuse();
}
const AttentionKernels& attention_kernels(SimdLevel) {
  refuse();
}
const LossKernels& loss_kernels(SimdLevel) {
  refuse();
}

}  // namespace cpu
}  // namespace headroom
