// One AdamW update over the flat buffers of a parameter table, or over a rank's slices of them. State that
// lives on the host passes through the device piece by piece: while one piece is updated the next comes in
// and the one before goes back. What an element becomes depends neither on the piece nor on the slice that it
// is in.
#pragma once

#include "headroom/memory/context.h"
#include "headroom/model/parameters.h"
#include "headroom/ops/adamw.h"
#include "headroom/train/checkpoint.h"

namespace headroom {

struct OptimizerUpdate {
  const ParameterTable& table;
  std::span<const ShardSlice> slices;  // that are updated; the buffers have their elements
  AdamW settings;                      // with the weight decay of what decays
  TensorView weights;                  // [elements of the slices], on the device
  TensorView gradients;                // as the weights
  TensorView factor;                   // [1] f32, of the gradients

  [[nodiscard]] std::int64_t elements() const { return weights.elements(); }
};

// Master weights and moments are on the device.
void update_on_device(Context& context, const OptimizerUpdate& update, const TrainBuffers& state);

// Master weights and moments are on the host. The device holds two pieces of them, of a 64th each.
void update_from_host(Context& context, const OptimizerUpdate& update, const TrainBuffers& state);

}  // namespace headroom
