// 16-bit elements of kernels that run on the host.
#pragma once

#include "headroom/core/dtype.h"

struct __half {
  headroom::Float16 value;
  explicit operator float() const { return static_cast<float>(value); }
};
