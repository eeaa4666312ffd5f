// headroom train: rehearses, says what it will take, reserves that and no more, trains, leaves a checkpoint.
#include <fmt/ostream.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <utility>

#include "cli.h"
#include "command.h"
#include "headroom/core/bytes.h"
#include "headroom/core/files.h"
#include "headroom/core/parse.h"
#include "headroom/device.h"
#include "headroom/memory.h"
#include "json_or_null.h"
#include "metrics.h"
#include "rates.h"
#include "training_page.h"
#include "training_run.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string model;
  std::string data;
  std::int64_t context = 0;
  std::int64_t batch = 1;
  std::int64_t accumulation = 1;
  std::optional<std::int64_t> max_documents;
  bool bytes = false;
  std::optional<std::int64_t> budget;
  std::string attention = "causal";
  std::optional<std::string> dtype;
  OptimizerSettings optimizer;
  std::optional<std::int64_t> warmup;
  std::string out;
  std::uint64_t seed = 0;
  std::int64_t save_every = 0;
  std::int64_t keep_last = 2;
  bool resume = false;
  bool overwrite = false;
  std::string device = "cpu";
  int threads = 0;
  bool json = false;
  std::optional<std::string> html;
};

// Ctrl-C, a request to end, and a terminal that goes away ask the loop to save and leave. A second Ctrl-C
// ends the process as usual. The other two often come twice by themselves (from timeout, from a shell that
// closes), which must not end a run that is saving. The handler may run on any thread.
std::atomic<bool> stop_asked = false;
static_assert(std::atomic<bool>::is_always_lock_free);

class StopOnSignal {
 public:
  StopOnSignal() {
    stop_asked = false;
    struct sigaction action {};
    action.sa_handler = [](int) { stop_asked = true; };
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      // The flag is looked at often enough: no call of the system has to be interrupted for it.
      action.sa_flags = SA_RESTART | (kSignals[i] == SIGINT ? SA_RESETHAND : 0);
      sigaction(kSignals[i], nullptr, &before_[i]);
      // Whoever started the run wants it to go on: nohup at the end of a terminal, a shell script at Ctrl-C
      // of what it runs in the background.
      if (before_[i].sa_handler == SIG_IGN) continue;
      sigaction(kSignals[i], &action, nullptr);
    }
  }
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;
  ~StopOnSignal() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> before_{};
};

// What --resume goes on from.
struct Resumed {
  fs::path checkpoint;
  TrainState state;

  // A whole number among the settings of the run that saved it.
  [[nodiscard]] std::int64_t whole_setting(const std::string& name) const {
    const auto found = state.settings.find(name);
    check(found != state.settings.end(), "{}: the settings have no {}", checkpoint.string(), name);
    return parse_whole(fmt::format("{}: setting {}", checkpoint.string(), name), found->second, 0);
  }
};

// From the root, so that it is no built-in model's name.
std::string whole_path(const std::string& path) {
  std::error_code ignored;
  return fs::weakly_canonical(fs::absolute(path, ignored), ignored).string();
}

// The folder of a resumed run's model may be gone: its checkpoint has the same config.json.
FoundModel model_of(const Options& options, const std::optional<Resumed>& resumed) {
  std::error_code ignored;
  if (resumed && !fs::exists(options.model, ignored)) {
    const auto saved = resumed->state.settings.find("model");
    if (saved != resumed->state.settings.end() && saved->second == whole_path(options.model)) {
      return open_model(resumed->checkpoint.string());
    }
  }
  return open_model(options.model);
}

// Everything that the next step's bits depend on; the budget and the number of threads are not among it.
std::vector<Setting> settings_of(const Options& options, const FoundModel& model, const Data& data,
                                 const TrainingProblem& problem, const DeviceDescription& device) {
  std::vector<Setting> settings;
  const auto add = [&](SettingKind kind, std::string_view name, const auto& value) {
    settings.push_back({.name = std::string(name), .value = fmt::format("{}", value), .kind = kind});
  };
  const OptimizerSettings& optimizer = problem.optimizer;
  // Data and models are compared by what they hold: they may have moved.
  add(SettingKind::free, "model", model.folder ? whole_path(options.model) : options.model);
  add(SettingKind::free, "data", options.data);
  add(SettingKind::exact, "data_fingerprint", data.fingerprint());
  add(SettingKind::exact, "context", options.context);
  add(SettingKind::exact, "batch", options.batch);
  add(SettingKind::exact, "accumulation", options.accumulation);
  add(SettingKind::exact, "max_documents", problem.sizes.max_documents);
  add(SettingKind::exact, "attention", options.attention);
  add(SettingKind::exact, "dtype", name(problem.compute_dtype));
  add(SettingKind::exact, "seed", options.seed);
  add(SettingKind::free, "steps", optimizer.steps);  // may grow
  add(SettingKind::exact, "learning_rate", optimizer.learning_rate);
  add(SettingKind::exact, "warmup", optimizer.warmup_steps);
  add(SettingKind::exact, "final_fraction", optimizer.final_fraction);
  add(SettingKind::exact, "beta1", optimizer.beta1);
  add(SettingKind::exact, "beta2", optimizer.beta2);
  add(SettingKind::exact, "epsilon", optimizer.epsilon);
  add(SettingKind::exact, "weight_decay", optimizer.weight_decay);
  add(SettingKind::exact, "clip", optimizer.max_norm);
  add(SettingKind::last_bits, "version", HEADROOM_VERSION);
  add(SettingKind::last_bits, "device", options.device);
  add(SettingKind::last_bits, "simd", name(device.simd));
  add(SettingKind::last_bits, "ranks", 1);
  return settings;
}

std::int64_t warmup_steps(const Options& options, const std::optional<Resumed>& resumed) {
  if (options.warmup) return *options.warmup;
  // The default depends on --steps, which may have grown.
  if (resumed) return resumed->whole_setting("warmup");
  return std::min<std::int64_t>(options.optimizer.steps / 10, 100);
}

std::int64_t max_documents(const Options& options) {
  return options.max_documents.value_or(256);
}

TrainingSetup make_setup(const Options& options, const Data& data, const FoundModel& model,
                         const DeviceDescription& device, const std::optional<Resumed>& resumed) {
  TrainingSetup setup;
  setup.problem = {.config = model.config,
                   .sizes = {.batch = options.batch,
                             .seq = options.context,
                             .max_documents = data.documents() ? max_documents(options) : 0},
                   .mask = parse_mask(options.attention),
                   .optimizer = options.optimizer,
                   .compute_dtype = options.dtype ? parse_dtype(*options.dtype) : default_dtype(device).dtype,
                   .accumulation = options.accumulation};
  OptimizerSettings& optimizer = setup.problem.optimizer;
  optimizer.warmup_steps = warmup_steps(options, resumed);
  validate(optimizer);
  check(data.documents() || !options.max_documents,
        "--max-documents means nothing with data '{}', which has no documents", options.data);
  check(setup.problem.mask.causal, "attention '{}' lets a token see what it is to predict; add causal",
        options.attention);
  check(setup.problem.compute_dtype == DType::f32 || setup.problem.compute_dtype == DType::bf16,
        "dtype '{}' cannot be trained in; use f32 or bf16", name(setup.problem.compute_dtype));
  setup.weights = model.folder;
  setup.out = options.out;
  setup.seed = options.seed;
  setup.save_every = options.save_every;
  setup.keep_last = options.keep_last;
  if (resumed) setup.checkpoint = resumed->checkpoint;
  setup.overwrite = options.overwrite;
  setup.settings = settings_of(options, model, data, setup.problem, device);
  return setup;
}

// Throws where the run that is resumed was another one. Returns what its owner has to know, a line each.
std::vector<std::string> compare(const Resumed& resumed, const TrainingSetup& setup, const Options& options) {
  const TrainState& state = resumed.state;
  const auto saved = [&](const std::string& name) {
    const auto found = state.settings.find(name);
    return found == state.settings.end() ? std::string() : found->second;
  };
  const auto fingerprint = std::ranges::find(setup.settings, "data_fingerprint", &Setting::name);
  check(saved("data_fingerprint") == fingerprint->value,
        "--resume: the data is not that of {}: it was made with '{}' of fingerprint {}, and '{}' has {}",
        resumed.checkpoint.string(), saved("data"), saved("data_fingerprint"), options.data,
        fingerprint->value);
  std::vector<std::string> notes;
  const std::string last_bits = compare_settings(state, setup.settings);
  if (!last_bits.empty()) notes.push_back(last_bits);
  OptimizerSettings before = setup.problem.optimizer;
  before.steps = resumed.whole_setting("steps");
  if (const std::int64_t steps = setup.problem.optimizer.steps; steps != before.steps) {
    const std::int64_t next = state.step + 1;
    notes.push_back(
        fmt::format("--steps is {} and was {}: from here on the learning rate is that of a run of {} steps "
                    "(step {}: {:.3g} instead of {:.3g})",
                    format_count(steps), format_count(before.steps), format_count(steps), format_count(next),
                    learning_rate(setup.problem.optimizer, next), learning_rate(before, next)));
  }
  for (const IncompleteCheckpoint& incomplete : incomplete_checkpoints(options.out)) {
    notes.push_back(fmt::format("{} is not complete ({} is missing) and is not resumed from",
                                incomplete.path.string(), incomplete.missing));
  }
  return notes;
}

[[noreturn]] void fail_shortfall(const TrainingFit& fit, std::int64_t budget_bytes) {
  std::string items;
  const std::vector<LiveBlock> blocks = blocks_at_peak(fit.layout.rehearsal, Space::device);
  for (std::size_t i = 0; i < std::min<std::size_t>(blocks.size(), 3); ++i) {
    items += fmt::format("{}{} {}", i == 0 ? "" : ", ", blocks[i].name, format_bytes(blocks[i].bytes));
  }
  fail(ErrorKind::memory,
       "does not fit: the budget is {} bytes and the smallest that would work is {}; its largest items: {}",
       format_count(budget_bytes), format_count(fit.needed_bytes), items);
}

void print_plan(const TrainingPlan& plan, std::ostream& out) {
  const TrainingProblem& problem = plan.setup.problem;
  const ParameterTable table(problem.config);
  fmt::print(out, "model   {}: {} parameters in {} {}, {}\n", plan.model, format_count(table.parameters()),
             problem.config.layers, problem.config.layers == 1 ? "layer" : "layers",
             name(problem.compute_dtype));
  fmt::print(out, "data    {}\n", plan.data.describe());
  fmt::print(out, "plan    {} for {} tokens a step: {}\n", format_bytes(plan.fit.needed_bytes),
             format_count(problem.sizes.batch * problem.sizes.seq), describe(plan.fit.strategy));
  fmt::print(out, "        budget {} for the arena and host staging; the process itself holds {} besides\n",
             format_bytes(plan.budget_bytes), format_bytes(plan.process_bytes));
  fmt::print(out, "        with scores and logits held it would take {}\n", format_bytes(plan.naive_bytes));
  if (const std::optional<double> floor = plan.data.floor()) {
    fmt::print(out, "        guessing costs {:.4f} nats: the floor for whoever does not look back\n", *floor);
  }
  if (plan.warning) fmt::print(out, "note    {}\n", *plan.warning);
  for (const std::string& note : plan.notes) fmt::print(out, "note    {}\n", note);
  if (problem.sizes.seq > problem.config.max_positions) {
    fmt::print(out, "note    the model was made for {} positions; this context has {}\n",
               format_count(problem.config.max_positions), format_count(problem.sizes.seq));
  }
}

std::string duration(double seconds) {
  const auto whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

std::string loss_text(const std::optional<double>& loss) {
  return loss ? fmt::format("{:.4f}", *loss) : "none";
}

// A live line on a terminal; elsewhere about twenty plain lines. Output that is lost, such as a pipe whose
// reader has gone, is remembered and not tried again: the run has to be saved before that is an error.
class Narrator {
 public:
  Narrator(std::ostream& out, std::int64_t steps, std::int64_t budget_bytes, bool quiet)
      : out_(out),
        steps_(steps),
        budget_bytes_(budget_bytes),
        quiet_(quiet),
        terminal_(!quiet && isatty(STDERR_FILENO) != 0) {}
  Narrator(const Narrator&) = delete;
  Narrator& operator=(const Narrator&) = delete;
  ~Narrator() {
    if (terminal_) std::fputs("\r\033[K", stderr);
  }

  [[nodiscard]] const std::optional<std::string>& lost_output() const { return lost_output_; }

  void at(const StepReport& report) {
    if (quiet_ || lost_output_) return;
    if (begun_ == 0) begun_ = report.step;
    const double left = report.seconds / static_cast<double>(report.step - begun_ + 1) *
                        static_cast<double>(steps_ - report.step);
    const std::string line = fmt::format(
        "step {} of {}  loss {}  {} tokens/s  memory {} now, {} peak, {} budget  {} left", report.step,
        steps_, loss_text(report.loss), format_count(static_cast<std::int64_t>(report.tokens_per_second)),
        format_bytes(report.live_bytes), format_bytes(report.live_peak_bytes), format_bytes(budget_bytes_),
        duration(left));
    if (!report.loss && !std::exchange(told_of_no_labels_, true)) {
      if (terminal_) std::fputs("\r\033[K", stderr);
      say(fmt::format(
          "note    step {} has no labelled token, so nothing was updated; the end counts such steps",
          report.step));
    }
    if (terminal_) {
      std::fprintf(stderr, "\r\033[K%s", line.c_str());
    } else if (report.step == begun_ || report.step == steps_ ||
               report.step % std::max<std::int64_t>(steps_ / 20, 1) == 0) {
      say(line);
    }
  }

 private:
  void say(const std::string& line) {
    if (lost_output_) return;
    try {
      out_ << line << std::endl;
    } catch (const Error& error) {
      lost_output_ = error.what();
    }
  }

  std::ostream& out_;
  std::int64_t steps_;
  std::int64_t budget_bytes_;
  bool quiet_;
  bool terminal_;
  std::int64_t begun_ = 0;
  bool told_of_no_labels_ = false;
  std::optional<std::string> lost_output_;
};

// How a run that was stopped can go on.
std::string how_to_go_on(const TrainingResult& result) {
  if (result.checkpoint.empty()) return "there is no checkpoint, because no step was finished";
  return fmt::format("the same command with --resume goes on from {}", result.checkpoint.string());
}

[[noreturn]] void fail_lost_output(const std::string& reason, const TrainingResult& result) {
  if (!result.interrupted) {
    fail(ErrorKind::runtime, "{}; training is done, its checkpoint is {}", reason,
         result.checkpoint.string());
  }
  fail(ErrorKind::runtime, "{}; training stopped after step {}; {}", reason, result.last_step,
       how_to_go_on(result));
}

void print_result(const TrainingResult& result, const Data& data, std::ostream& out) {
  if (!result.finished_a_step()) {
    fmt::print(out, "stopped before step {} was finished; {}\n", result.first_step, how_to_go_on(result));
    return;
  }
  fmt::print(out, "{} after step {}: loss {} -> {} in {}, live peak {}\n",
             result.interrupted ? "stopped" : "done", result.last_step, loss_text(result.first_loss),
             loss_text(result.last_loss), duration(result.seconds), format_bytes(result.live_peak_bytes));
  if (result.steps_without_labels > 0) {
    fmt::print(out, "passed over: {} of {} steps had no label and changed nothing\n",
               format_count(result.steps_without_labels),
               format_count(result.last_step - result.first_step + 1));
  }
  if (result.held_out_loss) {
    fmt::print(out, "held out: loss {:.4f}", *result.held_out_loss);
    if (const std::optional<double> floor = data.floor()) {
      fmt::print(out, ", {:.0f} % of the floor {:.4f}", 100 * *result.held_out_loss / *floor, *floor);
    }
    out << "\n";
  }
  fmt::print(out, "checkpoint: {}{}\n", result.checkpoint.string(),
             result.interrupted ? "; the same command with --resume goes on from it" : "");
  for (const std::string& note : result.notes) fmt::print(out, "note    {}\n", note);
}

nlohmann::ordered_json to_json(const Options& options, const TrainingPlan& plan,
                               const TrainingResult& result) {
  nlohmann::ordered_json json = {{"model", options.model},
                                 {"data", options.data},
                                 {"context", options.context},
                                 {"batch", options.batch},
                                 {"budget_bytes", plan.budget_bytes},
                                 {"planned_bytes", plan.fit.layout.reserved(Space::device)},
                                 {"planned_host_bytes", plan.fit.layout.reserved(Space::host)},
                                 {"process_bytes", plan.process_bytes},
                                 {"naive_bytes", plan.naive_bytes},
                                 {"strategy", describe(plan.fit.strategy)},
                                 {"first_step", result.first_step},
                                 {"last_step", result.last_step},
                                 {"first_loss", json_or_null(result.first_loss)},
                                 {"last_loss", json_or_null(result.last_loss)},
                                 {"steps_without_labels", result.steps_without_labels},
                                 {"held_out_loss", json_or_null(result.held_out_loss)},
                                 {"floor", json_or_null(plan.data.floor())},
                                 {"seconds", result.seconds},
                                 {"live_peak_bytes", result.live_peak_bytes},
                                 {"interrupted", result.interrupted},
                                 {"checkpoint", nullptr}};
  if (!result.checkpoint.empty()) json["checkpoint"] = result.checkpoint.string();
  if (plan.warning) json["warning"] = *plan.warning;
  std::vector<std::string> notes = plan.notes;
  notes.insert(notes.end(), result.notes.begin(), result.notes.end());
  if (!notes.empty()) json["notes"] = notes;
  return json;
}

// What --resume goes on from. Without it the folder must not hold what a run would replace.
std::optional<Resumed> find_run(const Options& options) {
  const auto latest = latest_checkpoint(options.out);
  const auto incomplete = incomplete_checkpoints(options.out);
  const std::string first_incomplete =
      incomplete.empty()
          ? std::string()
          : fmt::format("{}, which is not complete ({} is missing)",
                        incomplete.front().path.filename().string(), incomplete.front().missing);
  if (options.resume) {
    check(latest.has_value(), "--resume: {} has no checkpoint{}", options.out,
          incomplete.empty() ? "" : " but " + first_incomplete);
    Resumed resumed{.checkpoint = *latest, .state = read_train_state(*latest)};
    check(resumed.state.step < options.optimizer.steps,
          "--resume: {} has done {} of {} steps, so nothing is left to do; a larger --steps goes on",
          latest->string(), resumed.state.step, options.optimizer.steps);
    return resumed;
  }
  if (options.overwrite) return std::nullopt;
  check(!latest,
        "{} has the checkpoint {}; --resume goes on from it, --overwrite removes it, or choose another --out",
        options.out, latest ? latest->filename().string() : "");
  check(incomplete.empty(), "{} has {}; --overwrite removes it, or choose another --out", options.out,
        first_incomplete);
  std::error_code missing;
  const fs::path metrics = metrics_path(options.out);
  const auto metrics_bytes = fs::file_size(metrics, missing);
  check(missing || metrics_bytes == 0,
        "{} has {} and no checkpoint belongs to it; --overwrite begins it anew, or choose another --out",
        metrics.string(), format_bytes(static_cast<std::int64_t>(metrics_bytes)));
  return std::nullopt;
}

// What is to be printed and saved as JSON at the end has to be text from the beginning.
void check_text(std::string_view option, const std::string& value) {
  using Json = nlohmann::json;
  try {
    static_cast<void>(Json(value).dump());
  } catch (const Json::exception&) {
    fail(ErrorKind::input, "{} {} is no UTF-8; rename it", option,
         Json(value).dump(-1, ' ', true, Json::error_handler_t::replace));
  }
}

// The page must not replace what the run keeps in its folder.
void check_page(const std::string& page, const std::string& out) {
  const fs::path inside = fs::path(whole_path(page)).lexically_relative(whole_path(out));
  if (inside.empty()) return;
  const std::string name = inside.begin()->string();
  const bool own = name == ".lock" || name == metrics_path({}).string() || name.starts_with("step-") ||
                   name.starts_with(".step-");
  check(!own, "--html {} is the run's own file; choose another name", page);
}

void train(const Options& options, std::ostream& out) {
  const std::int64_t code_bytes = process_mapped_bytes();  // before the data is mapped
  check_text("--model", options.model);
  check_text("--data", options.data);
  check_text("--out", options.out);
  if (options.html) check_page(*options.html, options.out);
  check(!options.resume || !options.overwrite, "--resume keeps what --overwrite removes; give one of them");
  const Device device = parse_device(options.device);
  const ListedDevice listed = find_device(device);
  check(device.kind == DeviceKind::cpu, "device '{}': train runs on cpu", options.device);
  AppendedFile::check_kind(metrics_path(options.out));
  const std::int64_t budget_bytes = options.budget ? *options.budget : default_budget(listed.memory);
  // Nothing in the folder is read or written by two runs at a time.
  std::optional<FolderLock> lock;
  if (is_folder(options.out)) lock.emplace(options.out);
  const std::optional<Resumed> resumed = find_run(options);
  const FoundModel model = model_of(options, resumed);
  const Data data = Data::open(options.data, {.context = options.context,
                                              .vocab = model.config.vocab,
                                              .seed = options.seed,
                                              .max_documents = max_documents(options),
                                              .bytes = options.bytes});
  DeviceDescription description = listed.description;
  if (options.threads > 0) description.cores = options.threads;
  const TrainingSetup setup = make_setup(options, data, model, description, resumed);
  std::vector<std::string> notes = model.notes;
  if (resumed) {
    std::ranges::move(compare(*resumed, setup, options), std::back_inserter(notes));
    static_cast<void>(check_checkpoint(resumed->checkpoint, model.config, setup.problem.compute_dtype));
  }
  const TrainingFit fit = fit_training(setup.problem, description, budget_bytes,
                                       this_machine(description, setup.problem.compute_dtype).costs);
  if (!fit.fits) fail_shortfall(fit, budget_bytes);
  const TrainingPlan plan{.model = options.model,
                          .setup = setup,
                          .fit = fit,
                          .data = data,
                          .budget_bytes = budget_bytes,
                          .naive_bytes = naive_training_bytes(setup.problem, description),
                          .process_bytes = code_bytes + process_resident_bytes(),
                          .warning = dtype_warning(description, setup.problem.compute_dtype),
                          .notes = notes};
  if (!options.json) {
    print_plan(plan, out);
    out.flush();  // to be read while it trains
  }
  const std::unique_ptr<Backend> backend = open_backend(device, options.threads);
  if (!lock) {
    create_folders(setup.out);
    lock.emplace(setup.out);
    static_cast<void>(find_run(options));  // another run may have been here before the lock
  }
  // Before the first step too: the plan can be looked at while it trains.
  if (options.html) write_html(*options.html, training_page(plan, std::nullopt));
  const StopOnSignal signals;
  TrainingResult result;
  std::optional<std::string> lost_output;
  {
    Narrator narrator(out, setup.problem.optimizer.steps, budget_bytes, options.json);
    result = run_training(
        setup, fit, data, *backend, [&](const StepReport& report) { narrator.at(report); },
        [&] { return stop_asked || narrator.lost_output(); });
    lost_output = narrator.lost_output();
  }
  if (options.html) write_html(*options.html, training_page(plan, result));
  if (lost_output) fail_lost_output(*lost_output, result);
  if (options.json) {
    print_json(to_json(options, plan, result), out);
  } else {
    print_result(result, data, out);
  }
}

}  // namespace

void add_train(Command app, std::ostream& out) {
  auto options = std::make_shared<Options>();
  constexpr double kLargestFloat = std::numeric_limits<float>::max();
  app.add_text(
         "--model", options->model,
         "demo, qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b, qwen3-14b, qwen3-32b, llama3-8b, llama3-70b "
         "(random weights), or a Hugging Face folder")
      ->required();
  app.add_text("--data", options->data,
               "A text file, a .bin of tokens, a folder of documents, or recall; see docs/data.md")
      ->required();
  app.add_flag("--bytes", options->bytes,
               "Take the bytes of --data for tokens 0 to 255: of any file, for a model of any vocabulary");
  app.add_whole("--context", options->context, 1, kMostTokens, "Tokens of a sequence")->required();
  app.add_whole("--steps", options->optimizer.steps, 1, kMostCounted, "Updates")->required();
  app.add_text("--out", options->out, "Folder for checkpoints and metrics.jsonl")->required();
  app.add_budget("--budget", options->budget,
                 "Bytes it may take, such as 512MiB (default: what is free now)");
  app.add_whole("--batch", options->batch, 1, kMostTokens, "Sequences at a time");
  app.add_whole("--accumulation", options->accumulation, 1, kMostTokens, "Batches per update");
  app.add_text("--attention", options->attention, "causal, window:N, causal+dilated:SEGMENT/RATE");
  app.add_text("--dtype", options->dtype, "f32 or bf16 (default: what is fast on the device)");
  app.add_number("--learning-rate", options->optimizer.learning_rate, {.most = kLargestFloat},
                 "After warm-up");
  app.add_whole("--warmup", options->warmup, 0, kMostCounted, "Steps (default: a tenth, at most 100)");
  app.add_number("--final-fraction", options->optimizer.final_fraction, {.most = 1},
                 "Of the learning rate, at the end of the cosine");
  app.add_number("--weight-decay", options->optimizer.weight_decay, {.most = kLargestFloat}, "Of matrices");
  app.add_number("--clip", options->optimizer.max_norm,
                 {.least = 1e-30, .most = kLargestFloat, .or_infinity = true},
                 "Largest norm of the gradients; inf clips nothing");
  app.add_whole("--max-documents", options->max_documents, 1, kMostTokens - 1,
                "Pieces of documents in a sequence (default: 256)");
  app.add_seed("--seed", options->seed, "Of weights and data");
  app.add_whole("--save-every", options->save_every, 1, kMostCounted,
                "Steps between checkpoints (default: at the end alone)");
  app.add_whole("--keep-last", options->keep_last, 1, kMostCounted, "Checkpoints to keep");
  app.add_flag("--resume", options->resume, "Go on from the last checkpoint in --out, with the same bits");
  app.add_flag("--overwrite", options->overwrite,
               "Begin anew: remove the checkpoints and metrics in --out first");
  app.add_text("--device", options->device, "Where to train: cpu");
  add_threads_option(app, options->threads);
  app.add_flag("--json", options->json, "For machines; keys in docs/cli.md");
  add_html_option(app, options->html);
  app.footer(
      "Examples:\n"
      "  headroom train --model demo --data recall --context 16384 --budget 512MiB --steps 150 --out run\n"
      "  headroom train --model demo --data book.txt --context 8192 --steps 1000 --out run --save-every 100\n"
      "  headroom train --model qwen3-0.6b --data tokens.bin --context 8192 --steps 1000 --out run\n"
      "Ctrl-C saves and leaves, and so do SIGTERM and SIGHUP; the same command with --resume goes on.");
  app.callback([options, &out] { train(*options, out); });
}

}  // namespace headroom
