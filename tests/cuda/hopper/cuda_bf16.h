// 16-bit elements of kernels that run on the host.
#pragma once

#include "headroom/core/dtype.h"

struct __nv_bfloat16 {
  headroom::BFloat16 value;
  explicit operator float() const { return static_cast<float>(value); }
};
