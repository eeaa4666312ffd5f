#include "ops/random_fill.h"

#include "ops/cuda/eights.h"

namespace headroom {
namespace cuda {
namespace {

__global__ void random_fill_kernel(void* data, DType dtype, std::int64_t elements, Random random,
                                   std::uint64_t first, double low, double width, std::int64_t blocks) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements;
       i += blocks * kThreads) {
    store_element(data, dtype, i, random_element(random, first + static_cast<std::uint64_t>(i), low, width));
  }
}

}  // namespace
}  // namespace cuda

void random_fill_cuda(const RandomFill& call, TensorView, const Stream& stream) {
  const std::int64_t elements = call.view.elements();
  const std::int64_t blocks = cuda::blocks_for(elements, stream);
  cuda::launch("random_fill_kernel", cuda::random_fill_kernel, blocks, cuda::kThreads, 0, stream,
               call.view.raw(), call.view.dtype(), elements, call.random, call.first, call.low, call.width,
               blocks);
}

}  // namespace headroom
