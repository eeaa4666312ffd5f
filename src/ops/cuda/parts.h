// Sums that blocks have made of their rows, added up in the same order every time.
#pragma once

#include "headroom/core/stream.h"
#include "headroom/core/tensor_view.h"

namespace headroom::cuda {

// sums [dim] <- sums + the parts [count, dim]
void add_parts(const float* parts, std::int64_t count, const TensorView& sums, const Stream& stream);

}  // namespace headroom::cuda
