// What is asked of `headroom plan`, looked up: a model by its name or folder, a device by its name, and what
// this machine knows of it. See plan/answer.h.
#pragma once

#include "headroom/plan/question.h"

namespace headroom {

[[nodiscard]] PlannedDevice find_planned_device(std::string_view name,
                                                std::optional<std::int64_t> budget_bytes);

// Throws where model or device are unknown, and where attention is not causal.
[[nodiscard]] PlanQuestion plan_question(const PlanOptions& options);
// Rates that were measured on this machine, where it is the device; otherwise those of the catalogue.
[[nodiscard]] PlanCosts plan_costs(const PlanQuestion& question);

}  // namespace headroom
