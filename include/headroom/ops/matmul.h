// C <- A B (+ C), f32 arithmetic over f32, bf16 and f16 tensors. A transpose is a view: x.transpose(0, 1).
#pragma once

#include "headroom/memory/context.h"

namespace headroom {

// a [m, k], b [k, n], c [m, n]; each of any dtype, with unit stride in one of its dimensions, c in the last.
// Each element is one f32 sum, rounded to c's dtype once, whatever the depth. On a CPU the sum is in the
// order of k, and the bits do not depend on the number of threads. A GPU multiplies two matrices of one
// dtype, into f32 or that dtype.
void matmul(Context& context, const TensorView& a, const TensorView& b, const TensorView& c,
            bool add = false);

// c <- a b + addend, which is as c is. A GPU rounds the sum once; a CPU rounds the product first.
void matmul_add(Context& context, const TensorView& a, const TensorView& b, const TensorView& addend,
                const TensorView& c);

}  // namespace headroom
