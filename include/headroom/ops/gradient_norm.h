// The global norm of the gradients and the factor that clips it, both left in memory: the update reads them
// there, so that the host decides nothing.
#pragma once

#include "headroom/memory/context.h"
#include "headroom/ops/store.h"

namespace headroom {

// result <- [result +] sum of x^2. Squares and sums are f64, in chunks that do not depend on the threads.
//   view    dense f32
//   result  [1] f64 or f32
void sum_of_squares(Context& context, const TensorView& view, const TensorView& result, Store store);

// norm <- sqrt(sum); factor <- min(1, max_norm / (norm + 1e-6)). Where the sum is not finite, factor and
// finite are 0, and adamw leaves everything as it is.
struct ClipFactor {
  TensorView sum_of_squares;  // [1] f64 or f32
  TensorView norm;            // [1] f32
  TensorView factor;          // [1] f32
  TensorView finite;          // [1] i32: 1 or 0
};
// max_norm is positive; infinity clips nothing.
void clip_factor(Context& context, const ClipFactor& views, double max_norm);

}  // namespace headroom
