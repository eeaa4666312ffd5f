#include "cpu/vector_portable.h"
#include "ops/cpu/kernels-inl.h"

namespace headroom::cpu {

const OpKernels& op_kernels_portable() {
  static constexpr OpKernels kKernels = make_op_kernels<portable::Vec>();
  return kKernels;
}

}  // namespace headroom::cpu
