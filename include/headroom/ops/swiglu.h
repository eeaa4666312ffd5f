// SwiGLU: act = silu(gate) * up with silu(g) = g / (1 + e^-g). Shapes [tokens, mlp], one dtype (f32, bf16 or
// f16), unit stride in mlp; gate and up may be halves of one wider tensor.
#pragma once

#include "headroom/memory/context.h"

namespace headroom {

// act may be gate or up.
void swiglu_forward(Context& context, const TensorView& gate, const TensorView& up, const TensorView& act);

// dup = dact * silu(gate), dgate = dact * up * s * (1 + gate * (1 - s)) with s = 1 / (1 + e^-gate).
struct SwigluBackward {
  TensorView gate;
  TensorView up;
  TensorView act_gradient;
  TensorView gate_gradient;  // may be gate itself
  TensorView up_gradient;    // may be up itself
  TensorView act{};          // made again on the way, where it is wanted; may be act_gradient itself
};
void swiglu_backward(Context& context, const SwigluBackward& views);

}  // namespace headroom
