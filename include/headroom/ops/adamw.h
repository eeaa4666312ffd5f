// AdamW with decoupled weight decay and bias correction, as torch.optim.AdamW computes it.
#pragma once

#include <cstdint>

#include "headroom/memory/context.h"

namespace headroom {

struct AdamW {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  std::int64_t step = 1;  // of this update, from 1
};

// With g = factor * gradient and b = 1 - beta^step:
//   master <- (1 - learning_rate * weight_decay) * master
//   first  <- beta1 * first + (1 - beta1) * g
//   second <- beta2 * second + (1 - beta2) * g^2
//   master <- master - learning_rate / b1 * first / (sqrt(second) / sqrt(b2) + epsilon)
//   weight <- master
// A factor that is not above 0 (clip_factor's sign of a gradient that is not finite) changes nothing.
struct AdamWViews {
  TensorView master;    // dense f32
  TensorView gradient;  // as master
  TensorView first;     // as master
  TensorView second;    // as master
  TensorView weight;    // the master itself, or a dense copy of its shape in f32, bf16 or f16
  TensorView factor;    // [1] f32
};
void adamw(Context& context, const AdamWViews& views, const AdamW& settings);

}  // namespace headroom
