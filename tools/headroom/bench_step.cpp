// headroom bench step: one training step of a model, whole and as the sum of its kernels.
#include <fmt/ostream.h>

#include <algorithm>
#include <iostream>
#include <ostream>
#include <vector>

#include "bench.h"
#include "cli.h"
#include "headroom/core/bytes.h"
#include "headroom/cpu.h"
#include "headroom/jobs.h"
#include "progress.h"

namespace headroom {
namespace {

struct Options {
  std::vector<std::string> model = {"demo"};
  std::vector<std::int64_t> context = {4096, 16384};
  std::vector<std::string> dtype = {"f32"};
  std::string attention = "causal";
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
  std::string strategy;
  std::string status = "ok";
  std::vector<WorkRecord> work{};  // after the warm-up
};

// Rates from all rows, dtype by dtype, into this machine's file.
void write_calibration(const std::vector<Row>& rows, const DeviceDescription& device, std::ostream& out) {
  std::vector<CalibrationRuns> runs;
  for (const Row& row : rows) {
    const DType dtype = parse_dtype(row.dtype);
    auto same = std::ranges::find(runs, dtype, &CalibrationRuns::dtype);
    if (same == runs.end()) same = runs.insert(runs.end(), {.dtype = dtype, .records = {}});
    same->records.insert(same->records.end(), row.work.begin(), row.work.end());
  }
  write_rates(rates_file(), device, runs);
  fmt::print(out, "rates of this machine: {}\n", rates_file().string());
}

Row measure(const Options& options, const std::string& model, std::int64_t context_tokens,
            const std::string& dtype, Backend& backend, std::int64_t budget_bytes) {
  const TrainingProblem problem{.config = find_model(model),
                                .sizes = {.context = context_tokens},
                                .mask = parse_mask(options.attention),
                                .optimizer = {.learning_rate = 1e-6, .steps = 1'000'000},
                                .compute_dtype = parse_dtype(dtype)};
  const TrainingFit fit = fit_training(problem, backend.description(), budget_bytes,
                                       this_machine(backend.description(), problem.compute_dtype).costs);
  Row row{.model = model,
          .context = context_tokens,
          .dtype = dtype,
          .planned_bytes = fit.needed_bytes,
          .strategy = describe(fit.strategy)};
  if (!fit.fits) {
    row.status = fmt::format("oom: {} bytes", format_count(fit.needed_bytes));
    return row;
  }
  StepProgram program(backend, problem, fit);
  Context& context = program.context();
  std::vector<double> whole;
  std::vector<double> kernels;
  std::vector<double> updates;
  const auto step = [&] {
    const double before = context.work_seconds();
    whole.push_back(1e3 * seconds_of([&] { program.micro_step(); }));
    kernels.push_back(1e3 * (context.work_seconds() - before));
    updates.push_back(1e3 * seconds_of([&] { program.update(); }));
  };
  for (int i = 0; i < options.bench.warmup; ++i) step();
  program.warmed_up();
  whole.clear();
  kernels.clear();
  updates.clear();
  repeat(options.bench, step);
  row.work = program.work();
  row.milliseconds = median(whole);
  row.kernels_milliseconds = median(kernels);
  row.update_milliseconds = median(updates);
  return row;
}

double tokens_per_second(const Row& row) {
  return row.status == "ok"
             ? 1e3 * static_cast<double>(row.context) / (row.milliseconds + row.update_milliseconds)
             : 0;
}

void run(const Options& options, std::ostream& out) {
  const std::int64_t budget_bytes = bench_device(options.bench).budget;
  if (options.calibrate) check_can_write_rates();
  const std::unique_ptr<Backend> opened =
      open_backend(parse_device(options.bench.device), options.bench.threads);
  Backend& backend = *opened;
  std::vector<Row> rows;
  {
    Progress progress("step");
    const auto count =
        static_cast<std::int64_t>(options.model.size() * options.context.size() * options.dtype.size());
    for (const std::string& model : options.model) {
      for (const std::string& dtype : options.dtype) {
        for (const std::int64_t tokens : options.context) {
          progress.at(std::ssize(rows), count);
          rows.push_back(measure(options, model, tokens, dtype, backend, budget_bytes));
        }
      }
    }
  }
  if (options.calibrate) {
    const bool for_machines = options.bench.json || options.bench.csv;
    write_calibration(rows, backend.description(), for_machines ? std::cerr : out);
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
               format_count(static_cast<std::int64_t>(tokens_per_second(row))), bytes_cell(row.planned_bytes),
               row.status});
  }
  write_bench_page(options.bench, "A training step", "context", budget_bytes, std::move(points), table,
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
                              {"milliseconds", row.milliseconds},
                              {"update_milliseconds", row.update_milliseconds},
                              {"kernels_milliseconds", row.kernels_milliseconds},
                              {"tokens_per_second", tokens_per_second(row)},
                              {"planned_bytes", row.planned_bytes},
                              {"strategy", row.strategy},
                              {"status", row.status}});
    }
    return print_json(json, out);
  }
  out << as_asked(table, options.bench);
}

}  // namespace

void add_bench_step(Command app, std::ostream& out) {
  auto options = std::make_shared<Options>();
  app.add_list("--model", options->model, "Built-in names or Hugging Face folders");
  app.add_list("--context", options->context, 1, kMostTokens, "Tokens of the sequence");
  app.add_list("--dtype", options->dtype, "f32, bf16");
  app.add_text("--attention", options->attention, "causal, window:N, causal+dilated:SEGMENT/RATE");
  app.add_flag(
      "--calibrate", options->calibrate,
      "Write this machine's rates, by which plan predicts time (kept in $HEADROOM_RATES, or the user's "
      "configuration)");
  add_bench_options(app, options->bench);
  app.footer("Example:\n  headroom bench step --model demo --context 4096,16384 --budget 512MiB");
  app.callback([options, &out] { run(*options, out); });
}

}  // namespace headroom
