// headroom bench step: one training step of a model, whole and as the sum of its kernels.
#include <fmt/ostream.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <ostream>
#include <vector>

#include "bench.h"
#include "cli.h"
#include "headroom/core/bytes.h"
#include "headroom/cpu.h"
#include "headroom/jobs.h"
#include "progress.h"
#include "run_options.h"
#include "step_over_ranks.h"

namespace headroom {
namespace {

struct Options {
  std::vector<std::string> model = {"demo"};
  std::vector<std::int64_t> context = {4096, 16384};
  std::vector<std::string> dtype = {"f32"};
  std::vector<std::int64_t> ranks = {1};
  RingLink link;
  std::string attention = "causal";
  std::int64_t batch = 1;
  std::int64_t accumulation = 1;
  std::optional<std::int64_t> host_budget_bytes;
  PinOptions pins;
  std::string state = "f32";
  bool calibrate = false;
  BenchOptions bench;
};

struct Row {
  std::string model;
  std::int64_t context = 0;
  std::string dtype;
  double milliseconds = 0;          // forward, loss and backward
  double update_milliseconds = 0;   // clipping and AdamW
  double kernels_milliseconds = 0;  // of the former, inside kernels
  std::int64_t planned_bytes = 0;
  std::int64_t arena_bytes = 0;        // planned
  std::int64_t reserved_bytes = 0;     // as the backend counted it; 0 where nothing ran, as what follows
  std::int64_t live_peak_bytes = 0;    // of the run
  std::int64_t free_change_bytes = 0;  // of a GPU, over the timed steps: the most that two of them differ by
  std::string strategy;
  std::vector<StepImplementation> implementations{};
  std::string status = "ok";
  std::vector<StepWork> work{};  // after the warm-up
  Strategy chosen{};
  std::optional<StepOverRanks> over_ranks{};  // where there are several
};

// Rates from all rows, dtype by dtype, into this machine's file.
void write_calibration(const std::vector<Row>& rows, Backend& backend, std::ostream& out) {
  std::vector<CalibrationRuns> runs;
  for (const Row& row : rows) {
    const DType dtype = parse_dtype(row.dtype);
    auto same = std::ranges::find(runs, dtype, &CalibrationRuns::dtype);
    if (same == runs.end()) same = runs.insert(runs.end(), {.dtype = dtype, .records = {}});
    for (const StepWork& work : row.work) same->records.push_back(work.record);
  }
  std::optional<HostLink> link;
  if (backend.device().kind != DeviceKind::cpu) {
    link = measure_host_link(backend);
    fmt::print(out, "copies from the host {:.1f} GB/s, to the host {:.1f} GB/s\n", link->to_device / 1e9,
               link->to_host / 1e9);
  }
  write_rates(rates_file(), backend.description(), runs, link);
  fmt::print(out, "rates of this machine: {}\n", rates_file().string());
}

Row measure(const Options& options, const std::string& model, std::int64_t context_tokens,
            const std::string& dtype, std::int64_t ranks, const RunDevice& device) {
  const TrainingProblem problem{.config = find_model(model),
                                .sizes = {.batch = options.batch, .context = context_tokens},
                                .mask = parse_mask(options.attention),
                                .optimizer = {.learning_rate = 1e-6, .steps = 1'000'000},
                                .compute_dtype = parse_dtype(dtype),
                                .state = parse_state(options.state),
                                .accumulation = options.accumulation};
  check_training_dtype(device.description(), problem.compute_dtype);
  PinOptions pins = options.pins;
  pins.ranks = ranks;
  const PlanRequest request = device.request(problem, strategy_pins(pins, problem.config.layers));
  const TrainingFit fit =
      fit_training(request, this_machine(device.description(), problem.compute_dtype).costs);
  Row row{.model = model,
          .context = context_tokens,
          .dtype = dtype,
          .planned_bytes = fit.needed_bytes,
          .arena_bytes = fit.layout.reserved(Space::device),
          .strategy = describe(fit.strategy),
          .implementations = step_implementations(problem, fit.strategy, device.description()),
          .chosen = fit.strategy};
  if (!fit.fits) {
    row.status = fmt::format("oom: {} bytes", format_count(fit.needed_bytes));
    return row;
  }
  if (ranks > 1) {
    row.over_ranks = measure_step(problem, fit, request, device, options.bench, options.link);
    row.milliseconds = row.over_ranks->linked.milliseconds;
    row.update_milliseconds = row.over_ranks->linked.update_milliseconds;
    return row;
  }
  StepProgram program(*device.backend, problem, fit);
  Context& context = program.context();
  std::vector<double> whole;
  std::vector<double> updates;
  std::vector<std::int64_t> free_bytes;
  const auto step = [&] {
    whole.push_back(1e3 * seconds_of([&] { program.micro_steps(); }));
    updates.push_back(1e3 * seconds_of([&] { program.update(); }));
    if (const auto free = device.free_bytes()) free_bytes.push_back(*free);
  };
  for (int i = 0; i < options.bench.warmup; ++i) step();
  whole.clear();
  updates.clear();
  free_bytes.clear();
  const bool once = options.bench.steps == 1;
  if (!once) repeat(options.bench, step);
  // Apart from the times of whole steps, as measuring every kernel takes time of its own; but where one step
  // is all, it is a long one, in which that time is nothing.
  program.warmed_up();
  context.measure_work();
  const double measured = seconds_of([&] { program.micro_steps(); });
  const double in_kernels = context.work_seconds() / measured;
  const double update = seconds_of([&] { program.update(); });
  if (once) {
    whole = {1e3 * measured};
    updates = {1e3 * update};
  }
  row.work = program.work();
  row.reserved_bytes = device.backend->reserved_bytes(Space::device);
  row.live_peak_bytes = context.ledger().usage(Space::device).peak_bytes;
  row.milliseconds = median(whole);
  row.kernels_milliseconds = in_kernels * row.milliseconds;
  row.update_milliseconds = median(updates);
  if (!free_bytes.empty())
    row.free_change_bytes = std::ranges::max(free_bytes) - std::ranges::min(free_bytes);
  return row;
}

double tokens_per_second(const Options& options, const Row& row) {
  if (row.status != "ok") return 0;
  const auto tokens = static_cast<double>(options.accumulation * options.batch * row.context);
  return 1e3 * tokens / (row.milliseconds + row.update_milliseconds);
}

double arena_over_live_peak(const Row& row) {
  return static_cast<double>(row.reserved_bytes) /
         static_cast<double>(std::max<std::int64_t>(row.live_peak_bytes, 1));
}

// What the table has no column for: strategies, implementations that differ from row to row, free memory.
void print_remarks(const std::vector<Row>& rows, const RunDevice& device, std::ostream& out) {
  if (device.description().kind != DeviceKind::cpu) fmt::print(out, "\nbudget {}", describe_budgets(device));
  out << "\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    if (row.status != "ok") continue;
    if (row.over_ranks) {
      fmt::print(out, "{} {} {}: {}; ranks: {}\n", row.model, format_count(row.context), row.dtype,
                 row.strategy, describe_ranks(row.chosen));
      continue;
    }
    fmt::print(out, "{} {} {}: {}; arena {} over live peak {}: {:.4f}{}\n", row.model,
               format_count(row.context), row.dtype, row.strategy, format_bytes(row.reserved_bytes),
               format_bytes(row.live_peak_bytes), arena_over_live_peak(row),
               device.description().kind == DeviceKind::cpu ? ""
               : row.free_change_bytes == 0                 ? "; free memory is constant over steps"
                                            : fmt::format("; free memory changes by {} over steps",
                                                          format_bytes(row.free_change_bytes)));
    const bool repeated = i > 0 && rows[i - 1].model == row.model && rows[i - 1].dtype == row.dtype;
    if (!repeated) print_implementations(row.implementations, 8, out);
  }
}

// For one of so many ranks. They share the threads, as they share the cores.
RunDevice open_device(const Options& options, std::int64_t ranks) {
  const int threads = options.bench.threads;
  return open_run_device({.device = options.bench.device,
                          .threads = threads == 0 ? 0 : std::max(threads / static_cast<int>(ranks), 1),
                          .budget_bytes = options.bench.budget,
                          .host_budget_bytes = options.host_budget_bytes,
                          .ranks_here = static_cast<int>(ranks)});
}

// Over ranks: what a plan says beside what it took, without a link and over it.
Table rank_table(const std::vector<Row>& rows) {
  Table table({"model", "context", "dtype", "ranks", "ring", "shard", "loss ranks", "link", "without it ms",
               "predicted", "over it ms", "predicted", "ratio"});
  for (const Row& row : rows) {
    if (!row.over_ranks) continue;
    const StepOverRanks& times = *row.over_ranks;
    table.add({row.model, format_count(row.context), row.dtype, format_count(row.chosen.ranks()),
               format_count(row.chosen.ring_ranks), std::string(name(row.chosen.sharding)),
               std::string(name(row.chosen.loss_ranks)), describe(times.link),
               fmt::format("{:.1f}", times.alone.whole()),
               fmt::format("{:.1f}", times.predicted_alone_milliseconds),
               fmt::format("{:.1f}", times.linked.whole()),
               fmt::format("{:.1f}", times.predicted_milliseconds),
               fmt::format("{:.3f}", times.predicted_milliseconds / times.linked.whole())});
  }
  return table;
}

nlohmann::ordered_json to_json(const Row& row, const StepOverRanks& times) {
  nlohmann::ordered_json link = {{"bytes_per_second", nullptr},
                                 {"latency_seconds", times.link.latency.count()}};
  if (std::isfinite(times.link.bytes_per_second)) link["bytes_per_second"] = times.link.bytes_per_second;
  return {{"ring", row.chosen.ring_ranks},
          {"shard", name(row.chosen.sharding)},
          {"loss_ranks", name(row.chosen.loss_ranks)},
          {"head_group", row.chosen.head_group},
          {"link", link},
          {"alone_milliseconds", times.alone.whole()},
          {"predicted_alone_milliseconds", times.predicted_alone_milliseconds},
          {"linked_milliseconds", times.linked.whole()},
          {"predicted_milliseconds", times.predicted_milliseconds},
          {"predicted_over_measured", times.predicted_milliseconds / times.linked.whole()}};
}

void check_options(const Options& options) {
  check_link(options.link);
  const bool alone = std::ranges::find(options.ranks, 1) != options.ranks.end();
  check(!alone || !options.link.given(),
        "--link-rate, --link-share and --latency are of several ranks; --ranks has 1");
  check(!options.calibrate || std::ranges::all_of(options.ranks, [](auto count) { return count == 1; }),
        "--calibrate measures the rates of one rank; leave --ranks out");
  if (options.calibrate) check_can_write_rates();
}

void run(const Options& options, std::ostream& out) {
  check_options(options);
  const RunDevice device = open_device(options, 1);
  Backend& backend = *device.backend;
  std::vector<Row> rows;
  {
    Progress progress("step");
    const auto count = static_cast<std::int64_t>(options.model.size() * options.context.size() *
                                                 options.dtype.size() * options.ranks.size());
    for (const std::string& model : options.model) {
      for (const std::string& dtype : options.dtype) {
        for (const std::int64_t tokens : options.context) {
          for (const std::int64_t ranks : options.ranks) {
            progress.at(std::ssize(rows), count);
            std::optional<RunDevice> of_rank;
            if (ranks > 1) of_rank.emplace(open_device(options, ranks));
            rows.push_back(measure(options, model, tokens, dtype, ranks, of_rank ? *of_rank : device));
          }
        }
      }
    }
  }
  if (options.calibrate) {
    const bool for_machines = options.bench.json || options.bench.csv;
    write_calibration(rows, backend, for_machines ? std::cerr : out);
  }
  Table table(
      {"model", "context", "dtype", "step ms", "in kernels", "update ms", "tokens/s", "planned", "status"});
  std::vector<BenchPoint> points;
  for (const Row& row : rows) {
    points.push_back({fmt::format("{} {}", row.model, row.dtype), row.context,
                      row.status == "ok" ? std::optional(row.milliseconds) : std::nullopt,
                      row.planned_bytes});
    table.add({row.model, format_count(row.context), row.dtype, fmt::format("{:.1f}", row.milliseconds),
               fmt::format("{:.1f} %",
                           row.milliseconds == 0 ? 0 : 100 * row.kernels_milliseconds / row.milliseconds),
               fmt::format("{:.1f}", row.update_milliseconds),
               format_count(static_cast<std::int64_t>(tokens_per_second(options, row))),
               bytes_cell(row.planned_bytes), row.status});
  }
  write_bench_page(options.bench, "A training step", "context", device.budget.bytes, std::move(points), table,
                   backend.description());
  if (options.bench.json) {
    nlohmann::ordered_json json =
        bench_header(backend.description(), backend.description().kind == DeviceKind::cpu
                                                ? measured_peak_flops(backend.stream(StreamId::main)) / 1e9
                                                : 0);
    for (const Row& row : rows) {
      json["rows"].push_back({{"model", row.model},
                              {"context", row.context},
                              {"dtype", row.dtype},
                              {"state", options.state},
                              {"milliseconds", row.milliseconds},
                              {"update_milliseconds", row.update_milliseconds},
                              {"kernels_milliseconds", row.kernels_milliseconds},
                              {"tokens_per_second", tokens_per_second(options, row)},
                              {"batch", options.batch},
                              {"accumulation", options.accumulation},
                              {"planned_bytes", row.planned_bytes},
                              {"arena_bytes", row.arena_bytes},
                              {"reserved_bytes", row.reserved_bytes},
                              {"live_peak_bytes", row.live_peak_bytes},
                              {"arena_over_live_peak", arena_over_live_peak(row)},
                              {"free_change_bytes", row.free_change_bytes},
                              {"strategy", row.strategy},
                              {"implementations", row.implementations},
                              {"status", row.status},
                              {"ranks", row.chosen.ranks()}});
      if (row.over_ranks) json["rows"].back()["over_ranks"] = to_json(row, *row.over_ranks);
    }
    return print_json(json, out);
  }
  out << as_asked(table, options.bench);
  if (std::ranges::any_of(rows, [](const Row& row) { return row.over_ranks.has_value(); })) {
    out << "\n" << as_asked(rank_table(rows), options.bench);
  }
  if (!options.bench.csv && !options.bench.markdown) print_remarks(rows, device, out);
}

}  // namespace

void add_bench_step(Command app, std::ostream& out) {
  auto options = std::make_shared<Options>();
  app.add_list("--model", options->model, "Built-in names or Hugging Face folders");
  app.add_list("--context", options->context, 1, kMostTokens, "Tokens of the sequence");
  app.add_list("--dtype", options->dtype, "f32, bf16");
  app.add_text("--attention", options->attention, "causal, window:N, causal+dilated:SEGMENT/RATE");
  app.add_whole("--batch", options->batch, 1, kMostTokens, "Sequences at a time");
  app.add_whole("--accumulation", options->accumulation, 1, kMostTokens, "Batches per update");
  add_host_budget_option(app, options->host_budget_bytes);
  add_pin_options(app, options->pins);
  app.add_list("--ranks", options->ranks, 1, kMostRanks,
               "Numbers of ranks: threads that share the cores, or streams of one GPU");
  add_rank_options(app, options->pins);
  add_link_model_options(app, options->link);
  add_state_option(app, options->state);
  app.add_flag(
      "--calibrate", options->calibrate,
      "Write this machine's rates, by which plan predicts time (kept in $HEADROOM_RATES, or the user's "
      "configuration)");
  add_bench_options(app, options->bench);
  app.footer(
      "Examples:\n  headroom bench step --model demo --context 4096,16384 --budget 512MiB\n"
      "  headroom bench step --model demo --context 8192 --ranks 2,4,8 --link-share 0.5 --latency 100us "
      "--json\n"
      "  headroom bench step --model qwen3-4b --context 131072 --dtype bf16 --device cuda:0");
  app.callback([options, &out] { run(*options, out); });
}

}  // namespace headroom
