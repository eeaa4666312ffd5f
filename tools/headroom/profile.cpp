// headroom profile: runs real steps of the planned strategy and lays what happened beside what was planned:
// bytes by stage, time by kernel, resident memory beside the arena.
#include <fmt/ostream.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "bench.h"
#include "cli.h"
#include "headroom/core/bytes.h"
#include "headroom/core/files.h"
#include "headroom/core/memory_status.h"
#include "headroom/core/text.h"
#include "headroom/cpu.h"
#include "rates.h"
#include "step_program.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string model;
  std::int64_t context = 0;
  std::int64_t batch = 1;
  std::optional<std::int64_t> budget;
  std::string attention = "causal";
  std::optional<std::string> dtype;
  std::int64_t steps = 3;
  std::optional<std::string> trace;
  std::optional<std::string> html;
  int threads = 0;
  bool json = false;
};

// One kind of kernel, over a step.
struct KernelTime {
  std::string_view kernel;
  std::int64_t calls = 0;
  double seconds = 0;
  double predicted_seconds = 0;
  double flops = 0;
  double bytes = 0;
};

std::vector<KernelTime> by_kernel(std::span<const WorkRecord> records, const CostModel& costs) {
  std::map<std::string_view, KernelTime> kernels;
  for (const WorkRecord& record : records) {
    if (record.work.kernel == "copy" || record.runs == 0) continue;
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

struct Profile {
  TrainingFit fit;
  std::vector<StageUsage> planned;
  std::vector<StageUsage> measured;
  std::vector<double> stage_seconds;  // beside measured
  std::vector<KernelTime> kernels;
  std::int64_t live_peak_bytes = 0;
  std::int64_t resident_before_bytes = 0;  // the program itself
  std::int64_t resident_peak_bytes = 0;
  double step_seconds = 0;
  double predicted_seconds = 0;
  double peak_flops = 0;
};

// The step's stages, and the records that belong to each.
bool belongs(std::string_view stage, std::string_view phase, std::string_view path) {
  if (phase == "update") return stage == "optimizer step";
  if (path.starts_with("forward/embedding")) return stage == "after embedding";
  if (path.starts_with("forward/layer")) {
    const bool first = path == "forward/layer 0" || path.starts_with("forward/layer 0/");
    return stage == (first ? "after the first layer" : "after all layers");
  }
  if (path.starts_with("loss")) return stage == "loss";
  return path.starts_with("backward") && stage == "backward";
}

void write_trace(const std::string& file, const Context& context) {
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  for (const char* phase : {"micro-step", "update"}) {
    for (const WorkRecord& record : context.work(phase)) {
      events.push_back({{"name", record.work.kernel},
                        {"cat", phase},
                        {"ph", "X"},
                        {"pid", 1},
                        {"tid", 1},
                        {"ts", 1e6 * record.began},
                        {"dur", 1e6 * record.last_seconds},
                        {"args",
                         {{"stage", context.ledger().stage_path(record.stage)},
                          {"gflop", record.work.flops / 1e9},
                          {"megabytes", record.work.bytes / 1e6}}}});
    }
  }
  write_file(file,
             nlohmann::ordered_json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump());
}

Profile measure(const Options& options, const TrainingProblem& problem, std::int64_t budget_bytes) {
  Profile profile;
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
      costs.seconds(context.work("micro-step")) + costs.seconds(context.work("update"));
  profile.stage_seconds.assign(profile.measured.size(), 0);
  const std::size_t micro_step_records = context.work("micro-step").size();
  for (std::size_t r = 0; r < work.size(); ++r) {
    if (work[r].runs == 0) continue;
    const std::string_view phase = r < micro_step_records ? "micro-step" : "update";
    for (std::size_t i = 0; i < profile.measured.size(); ++i) {
      if (belongs(profile.measured[i].stage, phase, context.ledger().stage_path(work[r].stage)))
        profile.stage_seconds[i] += work[r].seconds / static_cast<double>(work[r].runs);
    }
  }
  if (options.trace) write_trace(*options.trace, context);
  return profile;
}

nlohmann::ordered_json to_json(const Options& options, const Profile& profile) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < profile.planned.size(); ++i) {
    stages.push_back({{"stage", profile.planned[i].stage},
                      {"planned_live_bytes", profile.planned[i].live_bytes},
                      {"live_bytes", profile.measured[i].live_bytes},
                      {"planned_peak_bytes", profile.planned[i].peak_bytes},
                      {"peak_bytes", profile.measured[i].peak_bytes},
                      {"seconds", profile.stage_seconds[i]}});
  }
  nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
  for (const KernelTime& row : profile.kernels) {
    kernels.push_back({{"kernel", row.kernel},
                       {"calls", row.calls},
                       {"seconds", row.seconds},
                       {"predicted_seconds", row.predicted_seconds},
                       {"gflops", row.flops / std::max(row.seconds, 1e-12) / 1e9},
                       {"gigabytes_per_second", row.bytes / std::max(row.seconds, 1e-12) / 1e9}});
  }
  const Layout& layout = profile.fit.layout;
  return {{"model", options.model},
          {"context", options.context},
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
          {"kernels", kernels}};
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

void print(const Options& options, const Profile& profile, std::ostream& out) {
  const Layout& layout = profile.fit.layout;
  const std::int64_t arenas = layout.reserved(Space::device) + layout.reserved(Space::host);
  fmt::print(out, "{}, {} tokens: {}\n", options.model, format_count(options.batch * options.context),
             describe(profile.fit.strategy));
  fmt::print(out, "arena     {} bytes planned, {} reserved\n", format_count(layout.reserved(Space::device)),
             format_count(layout.reserved(Space::device)));
  fmt::print(out, "live peak {} bytes planned, {} seen\n",
             format_count(layout.rehearsal.usage(Space::device).peak_bytes),
             format_count(profile.live_peak_bytes));
  fmt::print(out, "resident  {}; outside the arenas {}: the program {}, the rest {}\n",
             format_bytes(profile.resident_peak_bytes), format_bytes(profile.resident_peak_bytes - arenas),
             format_bytes(profile.resident_before_bytes),
             format_bytes(std::max<std::int64_t>(
                 profile.resident_peak_bytes - arenas - profile.resident_before_bytes, 0)));
  fmt::print(out, "step      {:.1f} ms, predicted {:.1f} ms\n\n", 1e3 * profile.step_seconds,
             1e3 * profile.predicted_seconds);
  Table stages({"stage", "planned live", "live", "planned peak", "peak", "kernels ms"});
  for (std::size_t i = 0; i < profile.planned.size(); ++i) {
    stages.add({profile.planned[i].stage, format_bytes(profile.planned[i].live_bytes),
                format_bytes(profile.measured[i].live_bytes), format_bytes(profile.planned[i].peak_bytes),
                format_bytes(profile.measured[i].peak_bytes),
                fmt::format("{:.2f}", 1e3 * profile.stage_seconds[i])});
  }
  out << stages.text() << "\n";
  out << kernel_table(profile).text();
  if (options.trace) fmt::print(out, "\ntrace: {}; chrome://tracing and Perfetto open it\n", *options.trace);
}

Page profile_page(const Options& options, const Profile& profile) {
  const Layout& layout = profile.fit.layout;
  const std::int64_t arenas = layout.reserved(Space::device) + layout.reserved(Space::host);
  Page page{.title = fmt::format("A step of {} at {} tokens", options.model, format_count(options.context)),
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
  page.sections.emplace_back(memory_timeline(layout.rehearsal, "micro-step"));
  Table stages({"stage", "planned peak", "peak", "kernels ms"});
  for (std::size_t i = 0; i < profile.planned.size(); ++i) {
    stages.add({profile.planned[i].stage, bytes_cell(profile.planned[i].peak_bytes),
                bytes_cell(profile.measured[i].peak_bytes),
                fmt::format("{:.2f}", 1e3 * profile.stage_seconds[i])});
  }
  page.sections.emplace_back(TableSection{.title = "Stages", .table = std::move(stages)});
  page.sections.emplace_back(TableSection{.title = "Kernels", .table = kernel_table(profile)});
  return page;
}

void profile_step(const Options& options, std::ostream& out) {
  if (options.html && options.trace) {
    check(fs::path(*options.html).lexically_normal() != fs::path(*options.trace).lexically_normal(),
          "--html and --trace name the same file {}", quote(*options.html));
  }
  BenchOptions bench;
  bench.budget = options.budget;
  const std::int64_t budget_bytes = budget_on_cpu(bench, "a step");
  TrainingProblem problem;
  problem.config = find_model(options.model);
  problem.sizes = {.batch = options.batch, .seq = options.context};
  problem.mask = parse_mask(options.attention);
  problem.optimizer = {.learning_rate = 1e-6, .steps = 1'000'000};
  problem.compute_dtype = options.dtype ? parse_dtype(*options.dtype) : DType::f32;
  check(problem.mask.causal, "attention '{}' lets a token see what it is to predict; add causal",
        options.attention);
  const Profile profile = measure(options, problem, budget_bytes);
  if (options.html) write_html(*options.html, profile_page(options, profile));
  if (options.json) {
    print_json(to_json(options, profile), out);
  } else {
    print(options, profile, out);
  }
}

}  // namespace

void add_profile(Command app, std::ostream& out) {
  auto options = std::make_shared<Options>();
  app.add_text("--model", options->model, "A built-in name (random weights) or a Hugging Face folder")
      ->required();
  app.add_whole("--context", options->context, 1, kMostTokens, "Tokens of a sequence")->required();
  app.add_whole("--batch", options->batch, 1, kMostTokens, "Sequences at a time");
  app.add_budget("--budget", options->budget,
                 "Bytes it may take, such as 512MiB (default: what is free now)");
  app.add_text("--attention", options->attention, "causal, window:N, causal+dilated:SEGMENT/RATE");
  app.add_text("--dtype", options->dtype, "f32 or bf16 (default: f32)");
  app.add_whole("--steps", options->steps, 1, 1000, "Steps to run, after one that does not count");
  app.add_output("--trace", options->trace, "Write the last step as a Chrome trace (JSON) to FILE");
  add_threads_option(app, options->threads);
  add_html_option(app, options->html);
  app.add_flag("--json", options->json, "For machines; keys in docs/cli.md");
  app.footer("Example:\n  headroom profile --model demo --context 16384 --budget 512MiB --trace step.json");
  app.callback([options, &out] { profile_step(*options, out); });
}

}  // namespace headroom
