// Whether numbers are finite, fast enough to ask of every weight that is saved.
#pragma once

#include <cstddef>
#include <span>

#include "headroom/core/tensor_view.h"

namespace headroom {

// False where one of the elements is infinite or NaN. `bytes` holds whole elements of a floating-point dtype.
[[nodiscard]] bool all_finite(std::span<const std::byte> bytes, DType dtype);

// The same of a dense view in host memory.
[[nodiscard]] bool all_finite(const TensorView& view);

}  // namespace headroom
