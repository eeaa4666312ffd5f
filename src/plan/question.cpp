#include "headroom/plan/question.h"

#include "headroom/core/bytes.h"
#include "headroom/plan/catalogue.h"
#include "plan/causal_mask.h"

namespace headroom {
namespace {

// What the driver keeps of a GPU for itself once a program uses it.
constexpr std::int64_t kDriverBytes = 600 * kMiB;

}  // namespace

PlannedDevice find_catalogue_device(std::string_view name, std::optional<std::int64_t> budget_bytes) {
  const DeviceDescription& device = find_in_catalogue(name).device;
  return {device, budget_bytes.value_or(device.memory_bytes - kDriverBytes)};
}

PlanQuestion plan_question(const PlanOptions& options, const FoundModel& model, const PlannedDevice& device) {
  PlanRequest request;
  request.problem.config = model.config;
  request.problem.sizes = {.batch = options.batch, .context = options.context};
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

PlanCosts catalogue_costs(const PlanQuestion& question) {
  return {CostModel(question.request.device, question.request.problem.compute_dtype),
          std::string(find_in_catalogue(question.device).source)};
}

}  // namespace headroom
