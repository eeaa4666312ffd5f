// One element of random_fill, for every device.
#pragma once

#include "headroom/core/random.h"
#include "headroom/core/stream.h"
#include "headroom/core/tensor_view.h"

namespace headroom {

struct RandomFill {
  TensorView view;  // dense f32, bf16 or f16
  Random random;
  std::uint64_t first;  // index of the view's first element
  double low;
  double width;
};

// One rounding, from double to float, and no product that a compiler could fuse: the same bits everywhere.
HEADROOM_HOST_DEVICE
inline float random_element(const Random& random, std::uint64_t index, double low, double width) {
  return static_cast<float>(fma(random.uniform(index), width, low));
}

void random_fill_cuda(const RandomFill& call, TensorView workspace, const Stream& stream);

}  // namespace headroom
