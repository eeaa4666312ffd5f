#include "headroom/jobs/profile.h"

#include <algorithm>
#include <map>
#include <span>

#include "headroom/core/bytes.h"
#include "headroom/core/files.h"
#include "headroom/core/memory_status.h"
#include "headroom/core/timing.h"
#include "headroom/cpu.h"
#include "headroom/jobs/rates.h"
#include "headroom/jobs/run_device.h"
#include "headroom/jobs/step_program.h"
#include "headroom/plan/catalogue.h"
#include "headroom/plan/played_phase.h"
#include "plan/causal_mask.h"
#include "report/json.h"

namespace headroom {
namespace {

// How often a step runs a piece of work of the phase.
double times_a_step(const ProfileOptions& options, Phase phase) {
  return static_cast<double>(phase == Phase::micro_step ? options.accumulation : 1);
}

std::vector<KernelTime> by_kernel(const ProfileOptions& options, std::span<const StepWork> work,
                                  const CostModel& costs) {
  std::map<std::string_view, KernelTime> kernels;
  for (const auto& [phase, record] : work) {
    if (record.work.kind == WorkKind::copy || record.runs == 0) continue;
    const double times = times_a_step(options, phase);
    KernelTime& row = kernels[record.work.kernel];
    row.kernel = record.work.kernel;
    row.calls += static_cast<std::int64_t>(times);
    row.seconds += times * record.seconds / static_cast<double>(record.runs);
    row.predicted_seconds += times * costs.seconds(record.work);
    row.flops += times * record.work.flops;
    row.bytes += times * record.work.bytes;
  }
  std::vector<KernelTime> rows;
  for (const auto& [name, row] : kernels) rows.push_back(row);
  std::ranges::sort(rows, std::greater(), &KernelTime::seconds);
  return rows;
}

// What the device's arena held while each piece of work ran. Blocks come and go between two pieces, so that
// this is exact.
void add_memory_track(OrderedJson& events, const Context& context, Phase phase) {
  const std::optional<std::size_t> index = context.ledger().find_phase(phase);
  if (!index) return;
  const std::vector<std::int64_t> live = live_bytes(context.ledger().phases()[*index], Space::device);
  for (const WorkRecord& record : context.work(phase)) {
    if (record.work.kind == WorkKind::copy) continue;  // its time is not measured
    events.push_back({{"name", "live bytes of the device arena"},
                      {"ph", "C"},
                      {"pid", 1},
                      {"ts", 1e6 * record.began},
                      {"args", {{"bytes", live.at(record.events_before)}}}});
  }
}

void write_trace(const std::string& file, const Context& context) {
  OrderedJson events = OrderedJson::array();
  for (const Phase phase : {Phase::micro_step, Phase::update}) {
    for (const WorkRecord& record : context.work(phase)) {
      if (record.work.kind == WorkKind::copy) continue;  // its time is not measured
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
  for (const Phase phase : {Phase::micro_step, Phase::update}) add_memory_track(events, context, phase);
  write_file(file, OrderedJson{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump());
}

// Of products in the dtype.
void set_peak(Profile& profile, Backend& backend, DType dtype) {
  if (backend.device().kind == DeviceKind::cpu) {
    profile.peak_flops = measured_peak_flops(backend.stream(StreamId::main));
    profile.peak_source = "measured now";
  } else if (const CatalogueEntry* entry = find_in_catalogue(backend.description())) {
    profile.peak_flops = dtype == DType::f32 ? entry->device.f32_flops : entry->device.half_flops;
    profile.peak_source = entry->source;
  }
}

}  // namespace

bool FreeMemory::constant() const {
  return std::ranges::adjacent_find(after_steps, std::not_equal_to()) == after_steps.end();
}

Profile profile_step(const ProfileOptions& options) {
  Profile profile;
  profile.options = options;
  profile.resident_before_bytes = process_resident_bytes();
  const RunDevice device = open_run_device({.device = options.device,
                                            .threads = options.threads,
                                            .budget_bytes = options.budget_bytes,
                                            .host_budget_bytes = options.host_budget_bytes});
  Backend& backend = *device.backend;
  const DeviceDescription& description = device.description();
  const TrainingProblem problem{
      .config = find_model(options.model),
      .sizes = {.batch = options.batch, .context = options.context},
      .mask = causal_mask(options.attention),
      .optimizer = {.learning_rate = 1e-6, .steps = 1'000'000},
      .compute_dtype = options.dtype ? parse_dtype(*options.dtype) : default_training_dtype(description),
      .state = parse_state(options.state),
      .accumulation = options.accumulation};
  check_training_dtype(description, problem.compute_dtype);
  profile.device = description.name;
  const CostModel costs = this_machine(description, problem.compute_dtype).costs;
  const StrategyPins pins = strategy_pins(options.pins, problem.config.layers);
  const PlanRequest request = device.request(problem, pins);
  profile.fit = fit_training(request, costs);
  if (!profile.fit.fits) fail_shortfall(device, profile.fit, narrow_state_note(request, costs));
  profile.planned = step_stages(profile.fit.layout.rehearsal);
  profile.implementations = step_implementations(problem, profile.fit.strategy, description);
  set_peak(profile, backend, problem.compute_dtype);
  if (const auto free_bytes = device.free_bytes()) {
    profile.budgets = describe_budgets(device);
    profile.free = {.before_bytes = *free_bytes};
  }
  StepProgram program(backend, problem, profile.fit);
  if (profile.free) profile.free->reserved_bytes = *device.free_bytes();
  profile.reserved_bytes = backend.reserved_bytes(Space::device);
  program.step();
  program.warmed_up();
  program.context().measure_work();
  std::vector<double> seconds;
  for (std::int64_t i = 0; i < options.steps; ++i) {
    seconds.push_back(seconds_of([&] { program.step(); }));
    profile.resident_peak_bytes = std::max(profile.resident_peak_bytes, process_resident_bytes());
    if (profile.free) profile.free->after_steps.push_back(*device.free_bytes());
  }
  const Context& context = program.context();
  profile.measured = step_stages(context.ledger());
  profile.live_peak_bytes = context.ledger().usage(Space::device).peak_bytes;
  profile.step_seconds = median(seconds);
  const std::vector<StepWork> work = program.work();
  profile.kernels = by_kernel(options, work, costs);
  for (const Phase phase : {Phase::micro_step, Phase::update}) {
    profile.predicted_seconds +=
        times_a_step(options, phase) *
        play_phase(context.ledger(), phase, context.work(phase), [&](const WorkRecord& record) {
          return costs.seconds(record.work);
        }).seconds();
  }
  profile.stage_seconds.assign(profile.measured.size(), 0);
  for (const auto& [phase, record] : work) {
    if (record.runs == 0) continue;
    const auto stage = step_stage_of(phase, context.ledger().stage_path(record.stage));
    for (std::size_t i = 0; i < profile.measured.size(); ++i) {
      if (profile.measured[i].stage != stage) continue;
      profile.stage_seconds[i] +=
          times_a_step(options, phase) * record.seconds / static_cast<double>(record.runs);
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
  OrderedJson free = nullptr;
  if (profile.free) {
    free = {{"before_bytes", profile.free->before_bytes},
            {"reserved_bytes", profile.free->reserved_bytes},
            {"after_steps_bytes", profile.free->after_steps},
            {"constant", profile.free->constant()}};
  }
  return indented(
      {{"model", profile.options.model},
       {"context", profile.options.context},
       {"device", profile.device},
       {"state", profile.options.state},
       {"strategy", describe(profile.fit.strategy)},
       {"implementations", profile.implementations},
       {"planned_arena_bytes", layout.reserved(Space::device)},
       {"reserved_bytes", profile.reserved_bytes},
       {"host_bytes", layout.reserved(Space::host)},
       {"planned_live_peak_bytes", layout.rehearsal.usage(Space::device).peak_bytes},
       {"live_peak_bytes", profile.live_peak_bytes},
       {"resident_before_bytes", profile.resident_before_bytes},
       {"resident_peak_bytes", profile.resident_peak_bytes},
       {"free", free},
       {"step_seconds", profile.step_seconds},
       {"predicted_seconds", profile.predicted_seconds},
       {"peak_gflops", profile.peak_flops ? OrderedJson(*profile.peak_flops / 1e9) : OrderedJson()},
       {"stages", stages},
       {"kernels", kernels}});
}

Table kernel_table(const Profile& profile) {
  Table kernels({"kernel", "calls", "ms", "predicted", "GFLOP/s", "of peak", "GB/s"});
  for (const KernelTime& row : profile.kernels) {
    const double seconds = std::max(row.seconds, 1e-12);
    kernels.add({std::string(row.kernel), format_count(row.calls), fmt::format("{:.2f}", 1e3 * row.seconds),
                 fmt::format("{:.2f}", 1e3 * row.predicted_seconds),
                 row.flops > 0 ? fmt::format("{:.0f}", row.flops / seconds / 1e9) : "-",
                 row.flops > 0 && profile.peak_flops
                     ? fmt::format("{:.0f} %", 100 * row.flops / seconds / *profile.peak_flops)
                     : "-",
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
      {"a step", fmt::format("{:.1f} ms", 1e3 * profile.step_seconds),
       fmt::format("predicted {:.1f} ms", 1e3 * profile.predicted_seconds)}};
  const auto before_time = std::prev(figures.figures.end());
  if (profile.free) {
    figures.figures.insert(
        before_time, {"free", bytes_cell(profile.free->after_steps.back()),
                      profile.free->constant() ? "after every step" : "after the last step; it changed"});
  } else {
    figures.figures.insert(
        before_time,
        {{"resident", bytes_cell(profile.resident_peak_bytes), "what the system says the process holds"},
         {"outside the arenas", bytes_cell(profile.resident_peak_bytes - arenas), "the program itself"}});
  }
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
