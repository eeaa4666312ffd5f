// One AdamW update over the flat buffers of a parameter table. State that lives on the host passes through
// the device piece by piece: while one piece is updated the next comes in and the one before goes back. What
// an element becomes does not depend on the piece that it is in.
#pragma once

#include "headroom/memory/context.h"
#include "headroom/model/parameters.h"
#include "headroom/ops/adamw.h"

namespace headroom {

struct OptimizerUpdate {
  const ParameterTable& table;
  AdamW settings;        // with the weight decay of what decays
  TensorView weights;    // flat, on the device
  TensorView gradients;  // flat f32, on the device
  TensorView factor;     // [1] f32, of the gradients
};

// Flat f32; the master is empty where the weights are their own.
struct OptimizerState {
  const Tensor& master;
  const Tensor& first_moment;
  const Tensor& second_moment;
};

void update_on_device(Context& context, const OptimizerUpdate& update, const OptimizerState& state);

// The device holds two pieces of the state, of a 64th each.
void update_from_host(Context& context, const OptimizerUpdate& update, const OptimizerState& state);

}  // namespace headroom
