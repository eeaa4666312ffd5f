// The rows of the product, for kernels that make several in a loop over one workspace.
#pragma once

#include <cstdint>
#include <span>

#include "headroom/core/kernel_family.h"

namespace headroom {

// c <- a b (+ c), or c <- a b + addend; see headroom/ops/matmul.h.
struct Product {
  TensorView a;
  TensorView b;
  TensorView c;
  bool add = false;
  TensorView addend{};  // of c's shape and dtype; empty: none
};
using ProductRow = OperationRow<Product>;

// Fastest first.
[[nodiscard]] std::span<const ProductRow> product_rows();

// The row for the device. Its workspace for a product serves every product that has no more columns and no
// more depth, and a result that is f32 or of the same dtype.
[[nodiscard]] const ProductRow& product_row(const DeviceDescription& device);

// Its workspace for a product of n columns and depth k.
[[nodiscard]] std::int64_t product_workspace_bytes(std::int64_t n, std::int64_t k,
                                                   const DeviceDescription& device,
                                                   DType result = DType::f32);

// In src/ops/cuda/matmul.cpp.
void product_cuda(const Product& product, TensorView workspace, const Stream& stream);

// Throws where c <- a b is no product that the kernels make; phantoms too.
void check_product(const TensorView& a, const TensorView& b, const TensorView& c);
// Throws where the addend does not go with c.
void check_addend(const TensorView& addend, const TensorView& c);

}  // namespace headroom
