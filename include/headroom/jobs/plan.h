// Looks up what `headroom plan` is asked about: a model by its name or folder, a device by its name, and the
// rates that were measured on this machine. See plan/answer.h.
#pragma once

#include "headroom/plan/question.h"

namespace headroom {

// The CPU of this machine where the name is cpu, with what is free as its budget; otherwise a device of the
// catalogue.
[[nodiscard]] PlannedDevice find_planned_device(std::string_view name,
                                                std::optional<std::int64_t> budget_bytes);

// Throws where model or device are unknown, and where attention is not causal.
[[nodiscard]] PlanQuestion plan_question(const PlanOptions& options);
// Rates that were measured on this machine, where it is the device; otherwise those of the catalogue.
[[nodiscard]] PlanCosts plan_costs(const PlanQuestion& question);

}  // namespace headroom
