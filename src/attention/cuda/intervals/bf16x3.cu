#include "attention/cuda/intervals/split_backward.cuh"
#include "attention/cuda/intervals/split_forward.cuh"

namespace headroom::cuda {

const IntervalKernels& bf16x3_kernels() {
  static const IntervalKernels kKernels{.forward =
                                            [](const AttentionCall& call, const Stream& stream) {
                                              if (call.head_dim <= 64) {
                                                launch_split_forward<64>(call, stream);
                                              } else {
                                                launch_split_forward<128>(call, stream);
                                              }
                                            },
                                        .backward =
                                            [](const AttentionCall& call, const Stream& stream) {
                                              if (call.head_dim <= 64) {
                                                launch_split_backward<64>(call, stream);
                                              } else {
                                                launch_split_backward<128>(call, stream);
                                              }
                                            }};
  return kKernels;
}

}  // namespace headroom::cuda
