#include <algorithm>

#include "cuda/check.h"
#include "headroom/core/checked.h"
#include "ops/random_fill.h"

namespace headroom {
namespace {

constexpr int kThreads = 256;

__global__ void random_fill_kernel(float* data, std::int64_t elements, Random random, double low,
                                   double width) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements;
       i += step) {
    data[i] = random_element(random, static_cast<std::uint64_t>(i), low, width);
  }
}

}  // namespace

void random_fill_cuda(const RandomFill& call, TensorView, const Stream& stream) {
  const std::int64_t elements = call.view.elements();
  if (elements == 0) return;
  // Enough blocks to fill the chip several times over; the loop takes the rest.
  const auto blocks = static_cast<unsigned>(
      std::min<std::int64_t>(divide_up(elements, kThreads), std::int64_t{stream.device->cores} * 32));
  random_fill_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream.native)>>>(
      call.view.data<float>(), elements, call.random, call.low, call.width);
  check_launch("random_fill_kernel");
}

}  // namespace headroom
