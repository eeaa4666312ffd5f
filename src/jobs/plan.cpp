#include "headroom/jobs/plan.h"

#include "headroom/core/bytes.h"
#include "headroom/device.h"
#include "headroom/jobs/rates.h"
#include "headroom/plan/catalogue.h"
#include "jobs/causal_mask.h"

namespace headroom {
namespace {

// What the driver keeps of a GPU for itself once a program uses it.
constexpr std::int64_t kDriverBytes = 600 * kMiB;

}  // namespace

PlannedDevice find_planned_device(std::string_view name, std::optional<std::int64_t> budget_bytes) {
  if (name == "cpu") {
    const ListedDevice listed = find_device(parse_device(name));
    return {listed.description, budget_bytes.value_or(default_budget(listed.memory))};
  }
  const DeviceDescription& device = find_in_catalogue(name).device;
  return {device, budget_bytes.value_or(device.memory_bytes - kDriverBytes)};
}

PlanQuestion plan_question(const PlanOptions& options) {
  const PlannedDevice device = find_planned_device(options.device, options.budget_bytes);
  const FoundModel model = open_model(options.model);
  PlanRequest request;
  request.problem.config = model.config;
  request.problem.sizes = {.batch = options.batch, .seq = options.context};
  request.problem.mask = causal_mask(options.attention);
  request.problem.compute_dtype =
      options.dtype ? parse_dtype(*options.dtype) : default_dtype(device.description).dtype;
  request.problem.optimizer.kind = options.optimizer;
  request.device = device.description;
  request.budget_bytes = device.budget_bytes;
  request.host_budget_bytes = options.host_budget_bytes.value_or(0);
  request.pins = options.pins;
  return {.model = options.model,
          .device = options.device,
          .request = request,
          .notes = model.notes,
          .compare = options.compare};
}

PlanCosts plan_costs(const PlanQuestion& question) {
  const PlanRequest& request = question.request;
  const DType dtype = request.problem.compute_dtype;
  if (question.device != "cpu") {
    return {CostModel(request.device, dtype), std::string(find_in_catalogue(question.device).source)};
  }
  const MachineCosts machine = this_machine(request.device, dtype);
  return {machine.costs, machine.measured ? "measured on this machine"
                                          : "assumed; headroom bench step --calibrate measures them"};
}

}  // namespace headroom
