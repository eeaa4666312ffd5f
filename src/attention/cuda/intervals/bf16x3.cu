#include "attention/cuda/intervals/bf16x3.h"

#include "attention/cuda/intervals/portable.h"
#include "attention/cuda/intervals/split_backward.cuh"
#include "attention/cuda/intervals/split_forward.cuh"

namespace headroom::cuda {

const IntervalKernels& bf16x3_kernels() {
  static const IntervalKernels kKernels = [] {
    IntervalKernels kernels = portable_kernels();
    kernels.forward = [](const AttentionCall& call, const Stream& stream) {
      if (call.head_dim <= 64) {
        launch_split_forward<64>(call, stream);
      } else {
        launch_split_forward<128>(call, stream);
      }
    };
    kernels.backward = [](const AttentionCall& call, const Stream& stream) {
      if (call.head_dim <= 64) {
        launch_split_backward<64>(call, stream);
      } else {
        launch_split_backward<128>(call, stream);
      }
    };
    return kernels;
  }();
  return kKernels;
}

}  // namespace headroom::cuda
