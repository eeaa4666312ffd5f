#include "headroom/plan/answer.h"

#include <algorithm>
#include <utility>

#include "headroom/core/bytes.h"
#include "headroom/parallel.h"
#include "report/json.h"

namespace headroom {
namespace {

// No sequence of so many tokens is looked at for the context from which on ranks are faster.
constexpr std::int64_t kMostCrossover = std::int64_t{1} << 31;

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

// The link that times were estimated with: of ranks on one host without one of their own, its memory.
LinkModel costs_link(const PlanAnswer& answer) {
  return answer.costs.costs.rank_rates().link;
}

PlanRequest on_one_rank(PlanRequest request) {
  request.pins.ranks = 1;
  request.pins.ring.reset();
  request.pins.sharding.reset();
  request.pins.loss_ranks.reset();
  return request;
}

// Where one rank would be faster than those that were asked for, and up to which context.
std::optional<std::string> one_rank_note(const PlanAnswer& answer) {
  PlanRequest over = answer.question.request;
  if (over.pins.ranks == 1 || !answer.plan.fits) return std::nullopt;
  PlanRequest alone = on_one_rank(over);
  const CostModel& costs = answer.costs.costs;
  if (!run_fits(alone, costs)) return std::nullopt;
  const Plan one = make_plan(alone, costs);
  if (!one.fits || one.step.seconds >= answer.plan.step.seconds) return std::nullopt;
  // Doubled until the ranks are faster, which they are where one has not enough memory; then halved a few
  // times, since every look takes two plans.
  const auto faster = [&](std::int64_t context) {
    over.problem.sizes.context = alone.problem.sizes.context = context;
    const Plan shorter = make_plan(alone, costs);
    return !shorter.fits || make_plan(over, costs).step.seconds < shorter.step.seconds;
  };
  std::int64_t low = over.problem.sizes.context;
  std::int64_t high = 2 * low;
  while (high < kMostCrossover && !faster(high)) {
    low = high;
    high *= 2;
  }
  for (int i = 0; i < 3 && high < kMostCrossover; ++i) {
    const std::int64_t middle = low + (high - low) / 2;
    (faster(middle) ? high : low) = middle;
  }
  return fmt::format("one rank would be faster{}: here {} a step",
                     high < kMostCrossover ? fmt::format(" below about {} tokens", format_count(low)) : "",
                     seconds_text(one.step.seconds));
}

}  // namespace

std::string way_name(const Strategy& strategy) {
  const auto group = static_cast<int>(strategy.head_group);
  return name(way_of(group, static_cast<int>(strategy.ring_ranks)), group);
}

NamedLink rank_link(const PlanQuestion& question, std::int64_t ranks) {
  NamedLink link = default_link(question.request.device, ranks);
  if (question.link_bytes_per_second) link.model.bytes_per_second = *question.link_bytes_per_second;
  if (question.link_latency) link.model.latency = *question.link_latency;
  if (question.link_bytes_per_second || question.link_latency) link.name = describe(link.model);
  return link;
}

PlanAnswer answer_plan(PlanQuestion question, PlanCosts planned_costs) {
  PlanAnswer answer{.question = std::move(question), .costs = std::move(planned_costs)};
  PlanRequest& request = answer.question.request;
  CostModel& costs = answer.costs.costs;
  if (answer.question.fewest_ranks) {
    const std::optional<std::int64_t> fewest = smallest_ranks(request, costs, kMostPlannedRanks);
    if (fewest) request.pins.ranks = *fewest;
  }
  if (request.pins.ranks > 1) {
    answer.link = rank_link(answer.question, request.pins.ranks);
    costs.set_rank_link(answer.link.model);
  }
  answer.warning = dtype_warning(request.device, request.problem.compute_dtype);
  answer.notes = answer.question.notes;
  if (answer.warning) answer.notes.push_back(*answer.warning);
  answer.plan = make_plan(request, costs);
  if (!answer.plan.step.assumed.empty()) answer.notes.push_back(assumed_note(answer.plan.step.assumed));
  answer.state = state_bytes(answer.plan.layout.rehearsal);
  answer.stages = step_stages(answer.plan.layout.rehearsal);
  answer.changes = what_if(request, answer.plan, costs);
  if (answer.question.compare) answer.compared = compare(request, answer.plan, costs);
  if (!answer.plan.fits) answer.smallest_ranks = smallest_ranks(request, costs, kMostPlannedRanks);
  if (std::optional<std::string> note = one_rank_note(answer)) answer.notes.push_back(std::move(*note));
  answer.max_context =
      std::max(largest_context(request, costs), answer.plan.fits ? request.problem.sizes.context : 0);
  return answer;
}

std::optional<std::int64_t> crossover_context(const PlanQuestion& question, const PlanCosts& costs) {
  constexpr std::int64_t kStep = 256;
  PlanRequest over = question.request;
  PlanRequest alone = on_one_rank(over);
  CostModel linked = costs.costs;
  linked.set_rank_link(rank_link(question, over.pins.ranks).model);
  // Where the sequence does not fit on one rank, ranks are what is faster.
  const auto faster = [&](std::int64_t context) {
    over.problem.sizes.context = alone.problem.sizes.context = context;
    const Plan one = make_plan(alone, costs.costs);
    return !one.fits || make_plan(over, linked).step.seconds < one.step.seconds;
  };
  const std::int64_t last = question.request.problem.sizes.context / kStep;
  std::int64_t high = 1;
  while (high < last && !faster(high * kStep)) high *= 2;
  high = std::min(high, last);
  if (high == 0 || !faster(high * kStep)) return std::nullopt;
  std::int64_t low = high / 2;  // not faster, or 0
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (faster(middle * kStep) ? high : low) = middle;
  }
  return high * kStep;
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
      {"loss_ranks", name(step.strategy.loss_ranks)},
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
  if (step.strategy.ranks() > 1) {
    OrderedJson classes = OrderedJson::array();
    for (const RankShare& share : step.rank_shares) {
      classes.push_back({{"first_rank", share.first_rank},
                         {"ranks", share.ranks},
                         {"tokens", share.tokens},
                         {"arena_bytes", share.arena_bytes}});
    }
    json["rank_classes"] = classes;
    for (const RankDivision& division : answer.plan.divisions) {
      OrderedJson row = {{"ring", division.ring_ranks},
                         {"shard", name(division.sharding)},
                         {"loss_ranks", name(division.loss_ranks)},
                         {"head_group", division.head_group},
                         {"step_seconds", nullptr}};
      if (division.seconds) row["step_seconds"] = *division.seconds;
      json["choices"].push_back(row);
    }
    if (step.strategy.ring_ranks > 1) json["way"] = way_name(step.strategy);
    json["link"] = {{"name", answer.link.name},
                    {"bytes_per_second", costs_link(answer).bytes_per_second},
                    {"latency_seconds", costs_link(answer).latency.count()}};
    json["messages"] = {{"sent_bytes", step.traffic.sent_bytes},
                        {"attention_seconds", step.traffic.attention_seconds},
                        {"exposed_seconds", step.traffic.exposed_seconds},
                        {"sum_seconds", step.traffic.sum_seconds},
                        {"overlap", step.traffic.overlap},
                        {"bubbles", step.traffic.bubbles}};
  }
  if (answer.smallest_ranks) json["smallest_ranks"] = *answer.smallest_ranks;
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
