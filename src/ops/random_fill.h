// One element of random_fill, for every device.
#pragma once

#include "headroom/core/random.h"
#include "headroom/core/stream.h"

namespace headroom {

// One rounding, from double to float, and no product that a compiler could fuse: the same bits everywhere.
HEADROOM_HOST_DEVICE
inline float random_element(const Random& random, std::uint64_t index, double low, double width) {
  return static_cast<float>(fma(random.uniform(index), width, low));
}

void random_fill_cuda(float* data, std::int64_t elements, Random random, double low, double width,
                      const Stream& stream);

}  // namespace headroom
