#include "headroom/plan/answer.h"

#include <algorithm>
#include <utility>

#include "headroom/core/bytes.h"
#include "report/json.h"

namespace headroom {
namespace {

std::vector<PlanAnswer::Compared> compare(const PlanRequest& request, const Plan& plan,
                                          const CostModel& costs) {
  std::vector<PlanAnswer::Compared> rows;
  try {
    rows.push_back({.name = "naive: scores and logits held",
                    .bytes = naive_training_bytes(request.problem, request.device)});
  } catch (const Error&) {
    // More bytes than 64 bits count: at a hundred million tokens scores are.
  }
  const auto add = [&](std::string_view name, const PlannedStep& step) {
    rows.push_back({.name = std::string(name),
                    .bytes = step.arena_bytes + step.host_bytes,
                    .host_bytes = step.host_bytes,
                    .seconds = step.seconds});
  };
  Strategy checkpointed = plan.step.strategy;
  checkpointed.layers = {.recompute = request.problem.config.layers};
  add("every layer recomputed", plan_step(request, checkpointed, costs));
  if (!one_memory(request) && request.problem.optimizer.kind != OptimizerKind::none) {
    Strategy moved = plan.step.strategy;
    moved.offload_optimizer = !moved.offload_optimizer;
    add(moved.offload_optimizer ? "optimizer on the host" : "optimizer on the device",
        plan_step(request, moved, costs));
  }
  add("chosen", plan.step);
  return rows;
}

std::string assumed_note(const std::vector<AssumedKernel>& kernels) {
  std::string workspaces;
  for (const AssumedKernel& row : kernels) {
    if (row.workspace_bytes == 0) continue;
    workspaces +=
        fmt::format("{}{} {}", workspaces.empty() ? "" : ", ", row.kernel, format_bytes(row.workspace_bytes));
  }
  return fmt::format(
      "{} kinds of kernels of a step are not there yet for this device; these workspaces are assumed: {}",
      kernels.size(), workspaces);
}

}  // namespace

PlanAnswer answer_plan(PlanQuestion question, PlanCosts planned_costs) {
  PlanAnswer answer{.question = std::move(question), .costs = std::move(planned_costs)};
  const PlanRequest& request = answer.question.request;
  const CostModel& costs = answer.costs.costs;
  answer.warning = dtype_warning(request.device, request.problem.compute_dtype);
  answer.notes = answer.question.notes;
  if (answer.warning) answer.notes.push_back(*answer.warning);
  answer.plan = make_plan(request, costs);
  if (!answer.plan.step.assumed.empty()) answer.notes.push_back(assumed_note(answer.plan.step.assumed));
  answer.state = state_bytes(answer.plan.layout.rehearsal);
  answer.stages = step_stages(answer.plan.layout.rehearsal);
  answer.changes = what_if(request, answer.plan, costs);
  if (answer.question.compare) answer.compared = compare(request, answer.plan, costs);
  answer.max_context =
      std::max(largest_context(request, costs), answer.plan.fits ? request.problem.sizes.context : 0);
  return answer;
}

std::string json(const PlanAnswer& answer) {
  const PlanRequest& request = answer.question.request;
  OrderedJson advice = OrderedJson::array();
  for (const Change& change : answer.changes) {
    advice.push_back({{"change", change.what},
                      {"saved_bytes", change.saved_bytes},
                      {"added_seconds", change.added_seconds},
                      {"fits", change.fits}});
  }
  const PlannedStep& step = answer.plan.step;
  OrderedJson json = {
      {"model", answer.question.model},
      {"context", request.problem.sizes.context},
      {"batch", request.problem.sizes.batch},
      {"device", answer.question.device},
      {"dtype", name(request.problem.compute_dtype)},
      {"state", name(request.problem.state)},
      {"ranks", step.strategy.ranks()},
      {"ring", step.strategy.ring_ranks},
      {"shard", name(step.strategy.sharding)},
      {"fits", answer.plan.fits},
      {"arena_bytes", step.arena_bytes},
      {"rank_arena_bytes", step.rank_arena_bytes},
      {"live_peak_bytes", step.live_peak_bytes},
      {"reserved_bytes", step.arena_bytes},
      {"host_bytes", step.host_bytes},
      {"budget_bytes", request.budget_bytes},
      {"state_bytes", OrderedJson::array()},
      {"by_category", json_by_category(answer.plan.layout.rehearsal.usage(Space::device).at_peak)},
      {"by_stage", json_by_stage(answer.stages, [](StepStage stage) { return name(stage); })},
      {"strategy", describe(step.strategy)},
      {"optimizer_state", nullptr},
      {"max_context", answer.max_context},
      {"step_seconds", step.seconds},
      {"rates", answer.costs.source},
      {"advice", advice}};
  if (request.problem.optimizer.kind != OptimizerKind::none)
    json["optimizer_state"] = step.strategy.offload_optimizer ? "host" : "device";
  for (const StateBytes& row : answer.state) {
    json["state_bytes"].push_back({{"tensor", row.tensor},
                                   {"bytes", row.bytes},
                                   {"where", row.space == Space::host ? "host" : "device"}});
  }
  for (const AssumedKernel& row : step.assumed)
    json["assumed"].push_back({{"kernel", row.kernel}, {"workspace_bytes", row.workspace_bytes}});
  if (answer.warning) json["warning"] = *answer.warning;
  if (!answer.notes.empty()) json["notes"] = answer.notes;
  for (const PlanAnswer::Compared& row : answer.compared) {
    json["compare"].push_back({{"strategy", row.name},
                               {"bytes", row.bytes},
                               {"host_bytes", row.host_bytes},
                               {"step_seconds", row.seconds}});
  }
  return indented(json);
}

}  // namespace headroom
