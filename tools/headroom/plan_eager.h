// What `headroom plan` says of programs that are not ours: a model's step in eager PyTorch, and a
// ring-attention rank's chunk function.
#pragma once

#include <iosfwd>
#include <string>

#include "headroom/eager.h"
#include "headroom/plan.h"

namespace headroom {

struct EagerPlan {
  std::string model;
  PlanRequest request;
  EagerOptions options;
  bool json = false;
};
// Returns whether it fits.
bool plan_eager(const EagerPlan& plan, std::ostream& out);

struct RingPlan {
  RingSoftmax ring;
  DeviceDescription device;
  std::int64_t budget_bytes = 0;
  bool json = false;
};
bool plan_ring_softmax(RingPlan plan, std::ostream& out);

}  // namespace headroom
