// The rows of SwiGLU, for operations that are made of it.
#pragma once

#include <span>

#include "headroom/core/kernel_family.h"
#include "headroom/ops/swiglu.h"

namespace headroom {

struct SwigluForward {
  TensorView gate, up, act;
};

[[nodiscard]] std::span<const OperationRow<SwigluForward>> swiglu_forward_rows();
[[nodiscard]] std::span<const OperationRow<SwigluBackward>> swiglu_backward_rows();

}  // namespace headroom
