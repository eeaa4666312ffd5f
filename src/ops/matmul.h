// The product on a stream, for kernels that make several in a loop over one workspace.
#pragma once

#include <cstdint>

#include "headroom/core/device.h"
#include "headroom/core/stream.h"
#include "headroom/core/tensor_view.h"

namespace headroom {

// Enough for every product whose right operand has at most n columns and depth k, and whose result is f32 or
// of the given dtype.
[[nodiscard]] std::int64_t matmul_workspace_bytes(std::int64_t n, std::int64_t k,
                                                  const DeviceDescription& device, DType result = DType::f32);

// Throws where c <- a b is no product that the kernels make; phantoms too.
void check_product(const TensorView& a, const TensorView& b, const TensorView& c);

// c <- a b (+ c); see headroom/ops/matmul.h. The views are checked.
void matmul(const TensorView& a, const TensorView& b, const TensorView& c, bool add, TensorView workspace,
            const Stream& stream);

}  // namespace headroom
