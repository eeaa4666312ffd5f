// RMS normalisation: y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + epsilon), row by row.
#pragma once

#include "headroom/memory/context.h"
#include "headroom/ops/rope.h"
#include "headroom/ops/store.h"

namespace headroom {

// Rows with unit stride in dim: [rows, dim], or [tokens, heads, dim] where the heads of a token stand inside
// a wider row (QK-norm of a fused projection). Arithmetic is f32 and y is rounded once.
struct RmsNormForward {
  TensorView x;       // [rows, dim] f32, bf16 or f16
  TensorView weight;  // [dim], x's dtype or f32
  TensorView y;       // as x; may be x itself
  TensorView rstd;    // [rows] or [tokens, heads] f32: kept for backward
};
void rms_norm_forward(Context& context, const RmsNormForward& views, float epsilon);

// With h = x * rstd and g = dy * weight: dx = rstd * (g - h * mean(g * h)), dweight += sum over rows of
// dy * h.
struct RmsNormBackward {
  TensorView x;
  TensorView weight;
  TensorView rstd;
  TensorView y_gradient;       // as x
  TensorView x_gradient;       // as x; overwritten (may be y_gradient itself), or added to
  TensorView weight_gradient;  // [dim], x's dtype or f32, always added to in f32
};
void rms_norm_backward(Context& context, const RmsNormBackward& views, Store x_gradient);

// y <- rope(norm(x)) of heads, [tokens, heads, head_dim]: the two one after the other, in one pass on a GPU.
void rms_norm_rope_forward(Context& context, const RmsNormForward& views, float epsilon,
                           const RopeCall& rope);
// Backward of both. The gradient of y may be changed on the way.
void rms_norm_rope_backward(Context& context, const RmsNormBackward& views, Store x_gradient,
                            const RopeCall& rope);

}  // namespace headroom
