#include "headroom/jobs/plan.h"

#include "headroom/device.h"
#include "headroom/jobs/rates.h"

namespace headroom {

PlannedDevice find_planned_device(std::string_view name, std::optional<std::int64_t> budget_bytes) {
  if (name != "cpu") return find_catalogue_device(name, budget_bytes);
  const ListedDevice listed = find_device(parse_device(name));
  return {listed.description, device_budget(listed, budget_bytes).bytes};
}

PlanQuestion plan_question(const PlanOptions& options) {
  const PlannedDevice device = find_planned_device(options.device, options.budget_bytes);
  return plan_question(options, open_model(options.model), device);
}

PlanCosts plan_costs(const PlanQuestion& question) {
  if (question.device != "cpu") return catalogue_costs(question);
  const PlanRequest& request = question.request;
  const MachineCosts machine = this_machine(request.device, request.problem.compute_dtype);
  return {machine.costs, machine.measured ? "measured on this machine"
                                          : "assumed; headroom bench step --calibrate measures them"};
}

}  // namespace headroom
