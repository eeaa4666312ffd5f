// The page of a plan.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "headroom/core/bytes.h"
#include "headroom/plan/answer.h"

namespace headroom {
namespace {

// Memory over context for strategies in which all layers do the same.
LineChart context_chart(const PlanAnswer& answer) {
  PlanRequest request = answer.question.request;
  LineChart chart{.title = "Memory over context",
                  .x = {.label = "context", .unit = Unit::tokens, .logarithmic = true},
                  .y = {.label = "memory", .unit = Unit::bytes, .logarithmic = true},
                  .series = {},
                  .levels = {{"budget", static_cast<double>(request.budget_bytes)}},
                  .note = "Each line is rehearsed and packed, context by context."};
  struct Line {
    const char* name;
    LayerPolicy policy;
  };
  const std::int64_t layers = request.problem.config.layers;
  std::vector<Line> lines = {{"keep everything", {.keep_all = layers}},
                             {"keep attention", {.keep_attention = layers}},
                             {"recompute from the input", {.recompute = layers}}};
  if (request.host_budget_bytes > 0) lines.push_back({"offload the input", {.offload = layers}});
  const std::int64_t last =
      std::min<std::int64_t>(2 * std::max(answer.max_context, request.problem.sizes.context), 1 << 26);
  // A few thousand layers in all: a second of rehearsals.
  constexpr std::int64_t kMaxLayersRehearsed = 8192;
  std::int64_t factor = 2;
  const auto points = [&] {
    std::int64_t count = 0;
    for (std::int64_t context = 1024; context <= last; context *= factor) ++count;
    return count;
  };
  while (factor < last && points() * std::ssize(lines) * layers > kMaxLayersRehearsed) factor *= 2;
  Strategy strategy = answer.plan.step.strategy;
  for (const Line& line : lines) {
    LineChart::Series& series = chart.series.emplace_back(LineChart::Series{.name = line.name});
    strategy.layers = line.policy;
    for (std::int64_t context = 1024; context <= last; context *= factor) {
      request.problem.sizes.context = context;
      series.points.push_back(
          {static_cast<double>(context),
           static_cast<double>(plan_step(request, strategy, answer.costs.costs).arena_bytes)});
    }
  }
  return chart;
}

}  // namespace

std::string seconds_text(double seconds) {
  if (seconds < 1) return fmt::format("{:.0f} ms", 1e3 * seconds);
  if (seconds < 120) return fmt::format("{:.1f} s", seconds);
  return seconds < 7200 ? fmt::format("{:.1f} min", seconds / 60) : fmt::format("{:.1f} h", seconds / 3600);
}

Table rank_table(const PlanAnswer& answer) {
  Table table({"ranks that take the same", "first of them", "tokens of each", "arena of each"});
  for (const RankShare& share : answer.plan.step.rank_shares) {
    table.add({format_count(share.ranks), fmt::format("rank {}", share.first_rank),
               format_count(share.tokens), bytes_cell(share.arena_bytes)});
  }
  return table;
}

Table state_table(const PlanAnswer& answer) {
  const PlanRequest& request = answer.question.request;
  const auto parameters = static_cast<double>(ParameterTable(request.problem.config).parameters());
  Table state({fmt::format("state {}", name(request.problem.state)), "memory", "bytes a parameter", "where"});
  for (const StateBytes& row : answer.state) {
    state.add({row.tensor, bytes_cell(row.bytes),
               fmt::format("{:.2f}", static_cast<double>(row.bytes) / parameters),
               row.space == Space::host ? "host" : "device"});
  }
  return state;
}

Table compared_table(const PlanAnswer& answer) {
  Table compared({"beside it", "memory", "of it on the host", "time"});
  for (const PlanAnswer::Compared& row : answer.compared) {
    compared.add({row.name, bytes_cell(row.bytes), bytes_cell(row.host_bytes),
                  row.seconds > 0 ? seconds_text(row.seconds) : "-"});
  }
  return compared;
}

Table changes_table(const PlanAnswer& answer) {
  Table changes({"what if", "saves", "time", "fits"});
  for (const Change& change : answer.changes) {
    changes.add({change.what, bytes_cell(change.saved_bytes),
                 fmt::format("{}{}", change.added_seconds < 0 ? "-" : "+",
                             seconds_text(std::abs(change.added_seconds))),
                 change.fits ? "yes" : "no"});
  }
  return changes;
}

Page plan_page(const PlanAnswer& answer) {
  const PlanRequest& request = answer.question.request;
  const PlannedStep& step = answer.plan.step;
  Page page{.title = fmt::format("Plan for {} at {} tokens", answer.question.model,
                                 format_count(request.problem.sizes.context)),
            .subtitle = fmt::format("{} \u00b7 {} \u00b7 {}", request.device.name,
                                    name(request.problem.compute_dtype), describe(step.strategy)),
            .notes = answer.notes};
  Figures figures;
  figures.figures = {{"arena", bytes_cell(step.arena_bytes), answer.plan.fits ? "fits" : "does not fit"},
                     {"live peak", bytes_cell(step.live_peak_bytes), "of the blocks in it"},
                     {"budget", bytes_cell(request.budget_bytes), request.device.name},
                     {"on the host", bytes_cell(step.host_bytes), "staging and what is offloaded"},
                     {"a step", seconds_text(step.seconds), "rates " + answer.costs.source},
                     {"largest context", format_count(answer.max_context), "tokens that fit"}};
  if (step.strategy.ranks() > 1) {
    figures.figures.push_back({"ranks", format_count(step.strategy.ranks()), describe_ranks(step.strategy)});
    figures.figures.push_back(
        {"sent", bytes_cell(step.traffic.sent_bytes), "a step, by the rank that sends most"});
    figures.figures.push_back({"overlap", fmt::format("{:.3f}", step.traffic.overlap), answer.link.name});
  }
  page.sections.emplace_back(std::move(figures));
  if (step.strategy.ranks() > 1)
    page.sections.emplace_back(TableSection{.title = "What ranks take", .table = rank_table(answer)});
  MemoryTimeline timeline = memory_timeline(answer.plan.layout.rehearsal, Phase::micro_step);
  timeline.levels.push_back({"budget", static_cast<double>(request.budget_bytes)});
  page.sections.emplace_back(std::move(timeline));
  page.sections.emplace_back(context_chart(answer));
  page.sections.emplace_back(TableSection{.title = "Training state", .table = state_table(answer)});
  Table stages({"stage", "live", "peak"});
  for (const StepStageUsage& row : answer.stages)
    stages.add({std::string(name(row.stage)), bytes_cell(row.live_bytes), bytes_cell(row.peak_bytes)});
  page.sections.emplace_back(TableSection{.title = "Stages", .table = std::move(stages)});
  if (!answer.compared.empty())
    page.sections.emplace_back(TableSection{.title = "Comparison", .table = compared_table(answer)});
  if (!answer.changes.empty())
    page.sections.emplace_back(TableSection{.title = "Single changes", .table = changes_table(answer)});
  return page;
}

}  // namespace headroom
