// Elements of any floating-point dtype, one at a time, as double: for code that is meant to be read, not
// fast.
#pragma once

#include "headroom/core/error.h"
#include "headroom/core/tensor_view.h"

namespace headroom {

[[nodiscard]] inline double read_element(const TensorView& view, std::int64_t offset) {
  switch (view.dtype()) {
    case DType::f32: return static_cast<const float*>(view.raw())[offset];
    case DType::bf16: return static_cast<float>(static_cast<const BFloat16*>(view.raw())[offset]);
    case DType::f16: return static_cast<float>(static_cast<const Float16*>(view.raw())[offset]);
    case DType::f64: return static_cast<const double*>(view.raw())[offset];
    default: fail(ErrorKind::input, "{} is no floating-point type", name(view.dtype()));
  }
}

inline void write_element(const TensorView& view, std::int64_t offset, double value) {
  switch (view.dtype()) {
    case DType::f32: static_cast<float*>(view.raw())[offset] = static_cast<float>(value); return;
    case DType::bf16:
      static_cast<BFloat16*>(view.raw())[offset] = BFloat16(static_cast<float>(value));
      return;
    case DType::f16: static_cast<Float16*>(view.raw())[offset] = Float16(static_cast<float>(value)); return;
    case DType::f64: static_cast<double*>(view.raw())[offset] = value; return;
    default: fail(ErrorKind::input, "{} is no floating-point type", name(view.dtype()));
  }
}

}  // namespace headroom
