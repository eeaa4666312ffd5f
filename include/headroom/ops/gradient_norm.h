// The global norm of the gradients and the factor that clips it, both left in memory: the update reads them
// there, so that the host decides nothing.
#pragma once

#include "headroom/memory/context.h"
#include "headroom/ops/store.h"

namespace headroom {

// result <- [result +] sum of x^2. Squares and sums are f64, in chunks that do not depend on the threads.
//   view    dense f32, bf16 or f16
//   result  [1] f64 or f32
void sum_of_squares(Context& context, const TensorView& view, const TensorView& result, Store store);

// norm <- scale * sqrt(sum); factor <- scale * min(1, max_norm / (norm + 1e-6)): the norm of the gradients
// times scale, and what to multiply the gradients by so that they are scaled and clipped. Where the sum is
// not finite, factor and finite are 0, and adamw leaves everything as it is.
struct ClipFactor {
  TensorView sum_of_squares;  // [1] f64 or f32
  TensorView norm;            // [1] f32
  TensorView factor;          // [1] f32
  TensorView finite;          // [1] i32: 1 or 0
};
struct Clipping {
  double max_norm = 1;  // positive; infinity clips nothing
  double scale = 1;     // positive and finite
};
void clip_factor(Context& context, const ClipFactor& views, const Clipping& clipping);

}  // namespace headroom
