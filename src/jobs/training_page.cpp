// The page of a training run.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "headroom/core/bytes.h"
#include "headroom/jobs/train.h"
#include "jobs/metrics.h"

namespace headroom {
namespace {

Figures figures(const TrainingPlan& plan, const std::optional<TrainingResult>& result) {
  const StepSizes& sizes = plan.problem.sizes;
  Figures figures;
  figures.figures = {
      {"planned", bytes_cell(plan.fit.needed_bytes), "reserved before the first step"},
      {"budget", bytes_cell(plan.device.budget.bytes),
       fmt::format("{:.0f} % of it is planned", 100.0 * static_cast<double>(plan.fit.needed_bytes) /
                                                    static_cast<double>(plan.device.budget.bytes))},
      {"scores and logits held", bytes_cell(plan.naive_bytes), "what the same step would take"},
      {"tokens a batch", format_count(sizes.batch * sizes.context),
       fmt::format("{} {} of {}", format_count(sizes.batch), sizes.batch == 1 ? "sequence" : "sequences",
                   format_count(sizes.context))}};
  if (!result) return figures;
  figures.figures.push_back({"live peak", bytes_cell(result->live_peak_bytes), "as the run measured itself"});
  const std::string after =
      fmt::format("after step {}{}", result->last_step, result->interrupted ? ", stopped" : "");
  if (result->first_loss && result->last_loss) {
    figures.figures.push_back({"loss", fmt::format("{:.4f}", *result->last_loss),
                               fmt::format("from {:.4f}, {}", *result->first_loss, after)});
  } else if (result->finished_a_step()) {
    figures.figures.push_back({"loss", "none", fmt::format("no step had a label, {}", after)});
  }
  if (result->held_out_loss) {
    figures.figures.push_back(
        {"held-out loss", fmt::format("{:.4f}", *result->held_out_loss), "on samples never trained on"});
  }
  return figures;
}

LineChart loss_chart(const TrainingPlan& plan) {
  LineChart chart{.title = "Loss", .x = {.label = "step"}, .y = {.label = "nats a token"}};
  LineChart::Series& loss = chart.series.emplace_back(LineChart::Series{.name = "loss"});
  std::ifstream lines(metrics_path(plan.options.out));
  for (std::string line; std::getline(lines, line);) {
    auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json["step"].is_number() || !json["loss"].is_number()) continue;
    loss.points.push_back({json["step"].get<double>(), json["loss"].get<double>()});
  }
  if (const std::optional<double> floor = plan.data.floor()) {
    chart.levels.push_back({"chance level", *floor});
    chart.note = "A model that ignores the context cannot do better than the chance level.";
  }
  return chart;
}

}  // namespace

Page training_page(const TrainingPlan& plan, const std::optional<TrainingResult>& result) {
  const TrainingProblem& problem = plan.problem;
  Page page{.title = fmt::format("Training {} at {} tokens", plan.options.model,
                                 format_count(problem.sizes.context)),
            .subtitle =
                fmt::format("{} parameters in {} \u00b7 {} \u00b7 {}",
                            format_count(ParameterTable(problem.config).parameters()),
                            name(problem.compute_dtype), plan.data.describe(), describe(plan.fit.strategy))};
  if (plan.warning) page.notes.push_back(*plan.warning);
  page.notes.insert(page.notes.end(), plan.notes.begin(), plan.notes.end());
  page.sections.emplace_back(figures(plan, result));
  if (result) page.sections.emplace_back(loss_chart(plan));
  if (result && result->rank_live_peak_bytes.size() > 1) {
    Table ranks({"rank", "live peak"});
    for (std::size_t rank = 0; rank < result->rank_live_peak_bytes.size(); ++rank)
      ranks.add({fmt::format("{}", rank), bytes_cell(result->rank_live_peak_bytes[rank])});
    page.sections.emplace_back(
        TableSection{.title = "Ranks", .table = std::move(ranks), .note = describe_ranks(plan.fit.strategy)});
  }
  for (const Phase phase : {Phase::micro_step, Phase::update}) {
    MemoryTimeline timeline = memory_timeline(plan.fit.layout.rehearsal, phase);
    timeline.levels.push_back({"budget", static_cast<double>(plan.device.budget.bytes)});
    page.sections.emplace_back(std::move(timeline));
  }
  return page;
}

}  // namespace headroom
