// What an operation that turns heads checks of them.
#pragma once

#include "headroom/ops/rope.h"

namespace headroom {

void check_rope(const TensorView& x, const RopeCall& rope);

}  // namespace headroom
