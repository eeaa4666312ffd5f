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

// The same update with a state of 16 or 8 bits and no master: computed in f32, then stored with stochastic
// rounding, so that what is too small for one step counts over many. The random bits are a function of the
// step, the element's index in the flat buffer and the tensor alone.
//
// A moment of 8 bits is a small float, relative to a power of two that kMomentBlock neighbours share: sign,
// 4 bits of exponent and 3 of fraction (first), or 5 of exponent and 3 of fraction (second). A second moment
// that is above 0 stays so, because it divides.
inline constexpr std::int64_t kMomentBlock = 64;

struct NarrowAdamWViews {
  TensorView weight;           // dense bf16
  TensorView gradient;         // as weight
  TensorView first;            // dense, bf16 or u8
  TensorView second;           // as first
  TensorView first_exponents;  // [elements / kMomentBlock, rounded up] u8, where the moments are u8
  TensorView second_exponents;
  TensorView factor;  // [1] f32
};
// `first_element`, a multiple of kMomentBlock, is the index of element 0 in the flat buffer.
void adamw_narrow(Context& context, const NarrowAdamWViews& views, const AdamW& settings,
                  std::int64_t first_element);

}  // namespace headroom
