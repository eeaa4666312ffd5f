// One AdamW update over the flat buffers of a parameter table. State that lives on the host passes through
// the device piece by piece: while one piece is updated the next comes in and the one before goes back. What
// an element becomes does not depend on the piece that it is in.
#pragma once

#include "headroom/memory/context.h"
#include "headroom/model/parameters.h"
#include "headroom/ops/adamw.h"
#include "headroom/train/checkpoint.h"

namespace headroom {

struct OptimizerUpdate {
  const ParameterTable& table;
  AdamW settings;        // with the weight decay of what decays
  TensorView gradients;  // flat, on the device
  TensorView factor;     // [1] f32, of the gradients
};

// The weights are on the device; this function takes everything else there too.
void update_on_device(Context& context, const OptimizerUpdate& update, const TrainBuffers& state);

// Everything but the weights is on the host. The device holds two pieces of it, of a 64th each.
void update_from_host(Context& context, const OptimizerUpdate& update, const TrainBuffers& state);

}  // namespace headroom
