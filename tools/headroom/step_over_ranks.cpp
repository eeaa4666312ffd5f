#include "step_over_ranks.h"

#include <algorithm>
#include <mutex>

#include "ring_run.h"

namespace headroom {
namespace {

struct RankedRun {
  StepTimes times;
  std::vector<WorkRecord> records;  // of every rank, measured
};

RankedRun run_ranks(const TrainingProblem& problem, const Strategy& strategy, const Backend& like,
                    const BenchOptions& options, const LinkModel& link) {
  RankedRun run;
  std::mutex mutex;
  on_thread_ranks(static_cast<int>(strategy.ranks()), link, [&](Communicator& communicator) {
    const int rank = communicator.ranks().rank;
    const std::unique_ptr<Backend> backend = open_backend(like.device(), like.description().cores);
    const Layout layout = rehearse_training(problem, strategy, backend->description(), rank);
    StepProgram program(*backend, problem, strategy, layout, &communicator);
    const auto timed = [&](const auto& part) {
      communicator.barrier();
      return 1e3 * largest(seconds_of(part), communicator);
    };
    std::vector<double> steps;
    std::vector<double> updates;
    const auto step = [&] {
      steps.push_back(timed([&] { program.micro_steps(); }));
      updates.push_back(timed([&] { program.update(); }));
    };
    for (int i = 0; i < options.warmup; ++i) step();
    steps.clear();
    updates.clear();
    // The same steps are timed and give the rates: a machine that others use is as busy for both.
    program.warmed_up();
    program.context().measure_work();
    // All ranks have the same times, so that they make as many steps.
    double spent = 0;
    for (int i = 0; i < options.steps && spent <= options.max_seconds; ++i) {
      step();
      spent += (steps.back() + updates.back()) / 1e3;
    }
    const std::lock_guard lock(mutex);
    for (const StepWork& work : program.work()) run.records.push_back(work.record);
    run.times = {.milliseconds = median(steps), .update_milliseconds = median(updates)};
  });
  return run;
}

// Sums of numbers on the host are in no rehearsal: the loss of a micro-step and its labels.
double predicted_milliseconds(const PlanRequest& request, const Strategy& strategy, CostModel costs,
                              const LinkModel& link) {
  constexpr double kHostSums = 2;
  costs.set_rank_link(link);
  const double sums = kHostSums * static_cast<double>(strategy.accumulation) * link.latency.count();
  return 1e3 * (plan_step(request, strategy, costs).seconds + sums);
}

}  // namespace

StepOverRanks measure_step(const TrainingProblem& problem, const TrainingFit& fit, const PlanRequest& request,
                           const RunDevice& device, const BenchOptions& options, const RingLink& asked) {
  const Strategy& strategy = fit.strategy;
  const RankedRun alone = run_ranks(problem, strategy, *device.backend, options, {});
  CostModel costs = this_machine(device.description(), problem.compute_dtype).costs;
  calibrate(costs, alone.records);
  PlanRequest whole = request;
  whole.problem.sizes.batch *= problem.accumulation;
  StepOverRanks row{.alone = alone.times,
                    .predicted_alone_milliseconds = predicted_milliseconds(whole, strategy, costs, {}),
                    .linked = alone.times};
  row.predicted_milliseconds = row.predicted_alone_milliseconds;
  if (!asked.given()) return row;
  row.link.latency = Seconds(asked.latency_seconds);
  if (asked.bytes_per_second) row.link.bytes_per_second = static_cast<double>(*asked.bytes_per_second);
  if (asked.share > 0) {
    const auto sent = static_cast<double>(plan_step(whole, strategy, costs).traffic.sent_bytes);
    row.link.bytes_per_second = sent / (asked.share * alone.times.whole() / 1e3);
  }
  row.linked = run_ranks(problem, strategy, *device.backend, options, row.link).times;
  row.predicted_milliseconds = predicted_milliseconds(whole, strategy, costs, row.link);
  return row;
}

}  // namespace headroom
