// One element at a time: sums, constants, conversions.
#pragma once

#include "headroom/memory/context.h"

namespace headroom {

// y <- a + b in f32, rounded once. One shape and dtype (f32, bf16 or f16): all dense, or [rows, dim] with
// unit stride in dim. y may be a or b.
void add(Context& context, const TensorView& a, const TensorView& b, const TensorView& y);

// Every element of a dense view of f32, bf16 or f16 <- value.
void fill(Context& context, const TensorView& view, float value);

// Every byte of a dense view of any dtype <- 0; or every element of [rows, dim] with unit stride in dim, of
// f32, bf16 or f16.
void zero(Context& context, const TensorView& view);

// to <- from, rounded to nearest even. One shape, f32, bf16 or f16: both dense, or [rows, dim] with unit
// stride in dim.
void convert(Context& context, const TensorView& from, const TensorView& to);

}  // namespace headroom
