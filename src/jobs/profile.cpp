#include "headroom/jobs/profile.h"

#include <algorithm>
#include <map>
#include <span>

#include "headroom/core/bytes.h"
#include "headroom/core/files.h"
#include "headroom/core/memory_status.h"
#include "headroom/core/timing.h"
#include "headroom/cpu.h"
#include "headroom/device.h"
#include "headroom/jobs/rates.h"
#include "headroom/jobs/step_program.h"
#include "plan/causal_mask.h"
#include "report/json.h"

namespace headroom {
namespace {

std::vector<KernelTime> by_kernel(std::span<const WorkRecord> records, const CostModel& costs) {
  std::map<std::string_view, KernelTime> kernels;
  for (const WorkRecord& record : records) {
    if (record.work.kind == WorkKind::copy || record.runs == 0) continue;
    KernelTime& row = kernels[record.work.kernel];
    row.kernel = record.work.kernel;
    ++row.calls;
    row.seconds += record.seconds / static_cast<double>(record.runs);
    row.predicted_seconds += costs.seconds(record.work);
    row.flops += record.work.flops;
    row.bytes += record.work.bytes;
  }
  std::vector<KernelTime> rows;
  for (const auto& [name, row] : kernels) rows.push_back(row);
  std::ranges::sort(rows, std::greater(), &KernelTime::seconds);
  return rows;
}

void write_trace(const std::string& file, const Context& context) {
  OrderedJson events = OrderedJson::array();
  for (const Phase phase : {Phase::micro_step, Phase::update}) {
    for (const WorkRecord& record : context.work(phase)) {
      events.push_back({{"name", record.work.kernel},
                        {"cat", name(phase)},
                        {"ph", "X"},
                        {"pid", 1},
                        {"tid", 1},
                        {"ts", 1e6 * record.began},
                        {"dur", 1e6 * record.last_seconds},
                        {"args",
                         {{"stage", context.ledger().stage_path(record.stage).text()},
                          {"gflop", record.work.flops / 1e9},
                          {"megabytes", record.work.bytes / 1e6}}}});
    }
  }
  write_file(file, OrderedJson{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump());
}

}  // namespace

Profile profile_step(const ProfileOptions& options) {
  const std::int64_t budget_bytes =
      options.budget_bytes.value_or(default_budget(find_device(parse_device("cpu")).memory));
  const TrainingProblem problem{.config = find_model(options.model),
                                .sizes = {.batch = options.batch, .context = options.context},
                                .mask = causal_mask(options.attention),
                                .optimizer = {.learning_rate = 1e-6, .steps = 1'000'000},
                                .compute_dtype = options.dtype ? parse_dtype(*options.dtype) : DType::f32};
  Profile profile;
  profile.options = options;
  profile.resident_before_bytes = process_resident_bytes();
  CpuBackend backend(options.threads);
  const CostModel costs = this_machine(backend.description(), problem.compute_dtype).costs;
  profile.fit = fit_training(problem, backend.description(), budget_bytes, costs);
  if (!profile.fit.fits) {
    fail(ErrorKind::memory, "does not fit: the budget is {} bytes and the smallest that would work is {}",
         format_count(budget_bytes), format_count(profile.fit.needed_bytes));
  }
  profile.planned = step_stages(profile.fit.layout.rehearsal);
  profile.peak_flops = measured_peak_flops(backend.stream(StreamId::main));
  StepProgram program(backend, problem, profile.fit);
  const auto step = [&] {
    program.micro_step();
    program.update();
  };
  step();
  program.warmed_up();
  std::vector<double> seconds;
  for (std::int64_t i = 0; i < options.steps; ++i) {
    seconds.push_back(seconds_of(step));
    profile.resident_peak_bytes = std::max(profile.resident_peak_bytes, process_resident_bytes());
  }
  const Context& context = program.context();
  profile.measured = step_stages(context.ledger());
  profile.live_peak_bytes = context.ledger().usage(Space::device).peak_bytes;
  profile.step_seconds = median(seconds);
  const std::vector<WorkRecord> work = program.work();
  profile.kernels = by_kernel(work, costs);
  profile.predicted_seconds =
      costs.seconds(context.work(Phase::micro_step)) + costs.seconds(context.work(Phase::update));
  profile.stage_seconds.assign(profile.measured.size(), 0);
  const std::size_t micro_step_records = context.work(Phase::micro_step).size();
  for (std::size_t r = 0; r < work.size(); ++r) {
    if (work[r].runs == 0) continue;
    const Phase phase = r < micro_step_records ? Phase::micro_step : Phase::update;
    const auto stage = step_stage_of(phase, context.ledger().stage_path(work[r].stage));
    for (std::size_t i = 0; i < profile.measured.size(); ++i) {
      if (profile.measured[i].stage != stage) continue;
      profile.stage_seconds[i] += work[r].seconds / static_cast<double>(work[r].runs);
    }
  }
  if (options.trace) write_trace(*options.trace, context);
  return profile;
}

std::string json(const Profile& profile) {
  OrderedJson stages = OrderedJson::array();
  for (std::size_t i = 0; i < profile.planned.size(); ++i) {
    stages.push_back({{"stage", name(profile.planned[i].stage)},
                      {"planned_live_bytes", profile.planned[i].live_bytes},
                      {"live_bytes", profile.measured[i].live_bytes},
                      {"planned_peak_bytes", profile.planned[i].peak_bytes},
                      {"peak_bytes", profile.measured[i].peak_bytes},
                      {"seconds", profile.stage_seconds[i]}});
  }
  OrderedJson kernels = OrderedJson::array();
  for (const KernelTime& row : profile.kernels) {
    kernels.push_back({{"kernel", row.kernel},
                       {"calls", row.calls},
                       {"seconds", row.seconds},
                       {"predicted_seconds", row.predicted_seconds},
                       {"gflops", row.flops / std::max(row.seconds, 1e-12) / 1e9},
                       {"gigabytes_per_second", row.bytes / std::max(row.seconds, 1e-12) / 1e9}});
  }
  const Layout& layout = profile.fit.layout;
  return indented({{"model", profile.options.model},
                   {"context", profile.options.context},
                   {"strategy", describe(profile.fit.strategy)},
                   {"planned_arena_bytes", layout.reserved(Space::device)},
                   {"reserved_bytes", layout.reserved(Space::device)},
                   {"host_bytes", layout.reserved(Space::host)},
                   {"planned_live_peak_bytes", layout.rehearsal.usage(Space::device).peak_bytes},
                   {"live_peak_bytes", profile.live_peak_bytes},
                   {"resident_before_bytes", profile.resident_before_bytes},
                   {"resident_peak_bytes", profile.resident_peak_bytes},
                   {"step_seconds", profile.step_seconds},
                   {"predicted_seconds", profile.predicted_seconds},
                   {"peak_gflops", profile.peak_flops / 1e9},
                   {"stages", stages},
                   {"kernels", kernels}});
}

Table kernel_table(const Profile& profile) {
  Table kernels({"kernel", "calls", "ms", "predicted", "GFLOP/s", "of peak", "GB/s"});
  for (const KernelTime& row : profile.kernels) {
    const double seconds = std::max(row.seconds, 1e-12);
    kernels.add(
        {std::string(row.kernel), format_count(row.calls), fmt::format("{:.2f}", 1e3 * row.seconds),
         fmt::format("{:.2f}", 1e3 * row.predicted_seconds),
         row.flops > 0 ? fmt::format("{:.0f}", row.flops / seconds / 1e9) : "-",
         row.flops > 0 ? fmt::format("{:.0f} %", 100 * row.flops / seconds / profile.peak_flops) : "-",
         fmt::format("{:.1f}", row.bytes / seconds / 1e9)});
  }
  return kernels;
}

Page profile_page(const Profile& profile) {
  const Layout& layout = profile.fit.layout;
  const std::int64_t arenas = layout.reserved(Space::device) + layout.reserved(Space::host);
  Page page{.title = fmt::format("A step of {} at {} tokens", profile.options.model,
                                 format_count(profile.options.context)),
            .subtitle = describe(profile.fit.strategy)};
  Figures figures;
  figures.figures = {
      {"arena", bytes_cell(layout.reserved(Space::device)), "planned and reserved"},
      {"live peak", bytes_cell(profile.live_peak_bytes),
       profile.live_peak_bytes == layout.rehearsal.usage(Space::device).peak_bytes ? "as planned"
                                                                                   : "not as planned"},
      {"resident", bytes_cell(profile.resident_peak_bytes), "what the system says the process holds"},
      {"outside the arenas", bytes_cell(profile.resident_peak_bytes - arenas), "the program itself"},
      {"a step", fmt::format("{:.1f} ms", 1e3 * profile.step_seconds),
       fmt::format("predicted {:.1f} ms", 1e3 * profile.predicted_seconds)}};
  page.sections.emplace_back(std::move(figures));
  page.sections.emplace_back(memory_timeline(layout.rehearsal, Phase::micro_step));
  Table stages({"stage", "planned peak", "peak", "kernels ms"});
  for (std::size_t i = 0; i < profile.planned.size(); ++i) {
    stages.add({std::string(name(profile.planned[i].stage)), bytes_cell(profile.planned[i].peak_bytes),
                bytes_cell(profile.measured[i].peak_bytes),
                fmt::format("{:.2f}", 1e3 * profile.stage_seconds[i])});
  }
  page.sections.emplace_back(TableSection{.title = "Stages", .table = std::move(stages)});
  page.sections.emplace_back(TableSection{.title = "Kernels", .table = kernel_table(profile)});
  return page;
}

}  // namespace headroom
