// What is asked of `headroom plan`, looked up: a model by its name or folder, a device by its name, and what
// this machine knows of it. See plan/answer.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "headroom/plan/answer.h"

namespace headroom {

struct PlanOptions {
  std::string model;                                // a built-in name, or a Hugging Face folder
  std::int64_t context = 0;                         // tokens of a sequence
  std::int64_t batch = 1;                           // sequences of an update
  std::string device = "cpu";                       // this machine's, or a name of the catalogue
  std::optional<std::int64_t> budget_bytes{};       // without it: what the device has
  std::optional<std::int64_t> host_budget_bytes{};  // for what is offloaded; without it nothing is
  std::string attention = "causal";                 // as parse_mask() reads it
  std::optional<std::string> dtype{};               // without it: what is fast on the device
  OptimizerKind optimizer = OptimizerKind::adamw;
  StrategyPins pins{};
  bool compare = false;
};

// A device by the name that people type. Without a budget it is what the device has left for a program.
struct PlannedDevice {
  DeviceDescription description;
  std::int64_t budget_bytes = 0;
};
[[nodiscard]] PlannedDevice find_planned_device(std::string_view name,
                                                std::optional<std::int64_t> budget_bytes);

// Throws where model or device are unknown, and where attention is not causal.
[[nodiscard]] PlanQuestion plan_question(const PlanOptions& options);
// Rates that were measured on this machine, where it is the device; otherwise those of the catalogue.
[[nodiscard]] PlanCosts plan_costs(const PlanQuestion& question);

}  // namespace headroom
