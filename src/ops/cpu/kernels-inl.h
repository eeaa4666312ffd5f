// The table of one instruction set.
#pragma once

#include "ops/cpu/elementwise-inl.h"
#include "ops/cpu/rms_norm-inl.h"
#include "ops/cpu/rope-inl.h"

namespace headroom::cpu {

template <class Vec>
constexpr OpKernels make_op_kernels() {
  return {.rms_norm_forward = rms_norm_forward<Vec>,
          .rms_norm_backward = rms_norm_backward<Vec>,
          .add_parts = add_parts<Vec>,
          .rope = rope<Vec>,
          .rope_angles = rope_angles<Vec>,
          .swiglu_forward = swiglu_forward<Vec>,
          .swiglu_backward = swiglu_backward<Vec>,
          .scatter_add = scatter_add<Vec>,
          .add = add<Vec>,
          .fill = fill<Vec>,
          .convert = convert<Vec>,
          .adamw = adamw<Vec>,
          .sum_of_squares = sum_of_squares<Vec>};
}

}  // namespace headroom::cpu
