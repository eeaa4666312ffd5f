// headroom train: says what a run will take, trains, and says how it goes.
#include <fmt/ostream.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <limits>
#include <ostream>
#include <string>
#include <utility>

#include "cli.h"
#include "command.h"
#include "headroom/comm.h"
#include "headroom/core/bytes.h"
#include "headroom/jobs.h"
#include "launched_ranks.h"
#include "run_options.h"

namespace headroom {
namespace {

struct Options {
  TrainingOptions run;
  double rank_timeout = kDefaultTimeout.count();
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

void print_plan(const TrainingPlan& plan, std::ostream& out) {
  const TrainingProblem& problem = plan.problem;
  const ParameterTable table(problem.config);
  fmt::print(out, "model   {}: {} parameters in {} {}, {}{}\n", plan.options.model,
             format_count(table.parameters()), problem.config.layers,
             problem.config.layers == 1 ? "layer" : "layers", name(problem.compute_dtype),
             problem.state == StatePrecision::f32 ? "" : fmt::format(", state {}", name(problem.state)));
  fmt::print(out, "data    {}\n", plan.data.describe());
  const std::int64_t ranks = plan.ranks();
  fmt::print(out, "plan    {} {}for {} tokens a {}: {}\n", format_bytes(plan.fit.needed_bytes),
             ranks == 1 ? "" : fmt::format("on each of {} ranks ", ranks),
             format_count(problem.sizes.batch * problem.sizes.context),
             problem.accumulation > 1 ? "micro-step" : "step", describe(plan.fit.strategy));
  if (ranks > 1) fmt::print(out, "        ranks: {}\n", describe_ranks(plan.fit.strategy));
  if (const std::string choice = describe_choice(plan.fit.divisions); !choice.empty()) {
    fmt::print(out, "        chosen by estimated time: {}\n", choice);
  }
  if (plan.device.description().kind == DeviceKind::cpu) {
    fmt::print(out,
               "        budget {} for the arena and host staging{}; the process itself holds {} besides\n",
               format_bytes(plan.device.budget.bytes), ranks == 1 ? "" : " of a rank",
               format_bytes(plan.process_bytes));
  } else {
    fmt::print(out, "        and {} on the host; budget {}\n",
               format_bytes(plan.fit.layout.reserved(Space::host)), describe_budgets(plan.device));
  }
  fmt::print(out, "        with scores and logits held it would take {}\n", format_bytes(plan.naive_bytes));
  if (const std::optional<double> floor = plan.data.floor()) {
    fmt::print(out, "        chance level: {:.4f} nats (a model that ignores the context cannot do better)\n",
               *floor);
  }
  print_implementations(plan.implementations, 8, out);
  if (plan.warning) fmt::print(out, "note    {}\n", *plan.warning);
  for (const std::string& note : plan.notes) fmt::print(out, "note    {}\n", note);
  if (problem.sizes.context > problem.config.max_positions) {
    fmt::print(out, "note    the model was made for {} positions; this context has {}\n",
               format_count(problem.config.max_positions), format_count(problem.sizes.context));
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
      fmt::print(out, ", {:.0f} % of the chance level {:.4f}", 100 * *result.held_out_loss / *floor, *floor);
    }
    out << "\n";
  }
  fmt::print(out, "checkpoint: {}{}\n", result.checkpoint.string(),
             result.interrupted ? "; the same command with --resume goes on from it" : "");
  for (const std::string& note : result.notes) fmt::print(out, "note    {}\n", note);
}

// Ranks that mpirun or torchrun has started, or threads of this process.
void train(Options options, std::ostream& given) {
  options.run.rank_timeout = Seconds(options.rank_timeout);
  LaunchedRanks processes(options.run.devices, options.run.rank_timeout);
  Communicator* launched = processes.communicator();
  if (launched != nullptr) {
    const Ranks ranks = launched->ranks();
    check(options.run.pins.ranks == 1 || options.run.pins.ranks == ranks.count,
          "--ranks {} is for ranks that are threads, and {} processes were started; leave it out",
          options.run.pins.ranks, ranks.count);
    options.run.pins.ranks = ranks.count;
  }
  check(options.run.pins.ranks > 1 || (!options.run.link && !options.run.latency_seconds),
        "--link and --latency are of several ranks; add --ranks N");
  const bool leads = launched == nullptr || launched->ranks().rank == 0;
  std::ostream nowhere(nullptr);
  std::ostream& out = leads ? given : nowhere;
  check(!options.html || !is_file_of_run(*options.html, options.run.out),
        "--html {} is the run's own file; choose another name", options.html.value_or(""));
  TrainingPlan plan = plan_training(options.run, {.communicator = launched,
                                                  .local_rank = processes.local_rank(),
                                                  .local_count = processes.local_count()});
  if (!options.json) {
    print_plan(plan, out);
    out.flush();  // to be read while it trains
  }
  const StopOnSignal signals;
  TrainingResult result;
  std::optional<std::string> lost_output;
  {
    Narrator narrator(out, options.run.optimizer.steps, plan.device.budget.bytes, options.json || !leads);
    result = train(plan, {.began =
                              [&] {
                                // The plan can be looked at while it trains.
                                if (options.html)
                                  write_html(*options.html, training_page(plan, std::nullopt));
                              },
                          .step = [&](const StepReport& report) { narrator.at(report); },
                          .stop = [&] { return stop_asked || narrator.lost_output(); }});
    lost_output = narrator.lost_output();
  }
  // What happened is said first: the page may turn out not to be writable any more.
  if (options.json && !lost_output) {
    out << json(plan, result);
  } else if (!lost_output) {
    print_result(result, plan.data, out);
  }
  if (options.html && leads) write_html(*options.html, training_page(plan, result));
  if (lost_output) fail_lost_output(*lost_output, result);
  // A rank that hangs from here on is noticed: the end of MPI would wait for it without a timeout.
  processes.finish();
}

}  // namespace

void add_train(Command app, std::ostream& out) {
  auto options = std::make_shared<Options>();
  TrainingOptions& run = options->run;
  constexpr double kLargestFloat = std::numeric_limits<float>::max();
  app.add_text(
         "--model", run.model,
         "demo, qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b, qwen3-14b, qwen3-32b, llama3-8b, llama3-70b "
         "(random weights), or a Hugging Face folder")
      ->required();
  app.add_text("--data", run.data,
               "A text file, a .bin of tokens, a folder of documents, or recall; see docs/data.md")
      ->required();
  app.add_flag("--bytes", run.bytes,
               "Take the bytes of --data for tokens 0 to 255: of any file, for a model of 256 words or more");
  app.add_whole("--context", run.context, 1, kMostTokens, "Tokens of a sequence")->required();
  app.add_whole("--steps", run.optimizer.steps, 1, kMostCounted, "Updates of the whole run")
      ->default_str("")
      ->required();
  app.add_text("--out", run.out, "Folder for checkpoints and metrics.jsonl")->required();
  app.add_budget("--budget", run.budget_bytes,
                 "Bytes that it, or each rank, may take, such as 512MiB (default: what is free now)");
  add_host_budget_option(app, run.host_budget_bytes);
  add_pin_options(app, run.pins);
  app.add_whole("--ranks", run.pins.ranks, 1, kMostRanks,
                "Threads that train together, each with its own share of the cores; under mpirun or torchrun "
                "their processes are the ranks");
  add_rank_options(app, run.pins);
  add_link_options(app, run.link, run.latency_seconds);
  app.add_seconds("--rank-timeout", options->rank_timeout, {.above = true},
                  "How long a rank waits for another that sends nothing before the run ends");
  app.add_whole("--batch", run.batch, 1, kMostTokens, "Sequences at a time");
  app.add_whole("--accumulation", run.accumulation, 1, kMostTokens, "Batches per update");
  app.add_text("--attention", run.attention, "causal, window:N, causal+dilated:SEGMENT/RATE");
  app.add_text("--dtype", run.dtype, "f32 or bf16 (default: what is fast on the device)");
  add_state_option(app, run.state);
  app.add_number("--learning-rate", run.optimizer.learning_rate, {.most = kLargestFloat},
                 "Learning rate after the warm-up");
  app.add_whole("--warmup", run.warmup, 0, kMostCounted, "Steps (default: a tenth, at most 100)");
  app.add_number("--final-fraction", run.optimizer.final_fraction, {.most = 1},
                 "Part of the learning rate that is left when the cosine ends");
  app.add_number("--weight-decay", run.optimizer.weight_decay, {.most = kLargestFloat},
                 "Weight decay of matrices; norms have none");
  app.add_number("--clip", run.optimizer.max_norm,
                 {.least = 1e-30, .most = kLargestFloat, .or_infinity = true},
                 "Largest norm of the gradients; inf clips nothing");
  app.add_whole("--max-documents", run.max_documents, 1, kMostTokens - 1,
                "Pieces of documents in a sequence (default: 256)");
  app.add_seed("--seed", run.seed, "Seed of weights and data");
  app.add_whole("--save-every", run.save_every, 1, kMostCounted,
                "Steps between checkpoints (default: at the end alone)");
  app.add_whole("--keep-last", run.keep_last, 1, kMostCounted, "Checkpoints to keep");
  app.add_flag("--resume", run.resume, "Go on from the last checkpoint in --out, with the same bits");
  app.add_flag("--overwrite", run.overwrite, "Begin anew: replace the checkpoints and metrics in --out");
  app.add_list(
      "--device", run.devices,
      "Where to train: cpu or cuda:N; several GPUs, such as cuda:0,cuda:1, are taken by ranks in turn");
  add_threads_option(app, run.threads);
  app.add_flag("--json", options->json, "For machines; keys in docs/cli.md");
  add_html_option(app, options->html);
  app.footer(
      "Examples:\n"
      "  headroom train --model demo --data recall --context 16384 --budget 512MiB --steps 150 --out run\n"
      "  headroom train --model demo --data book.txt --context 8192 --steps 1000 --out run --save-every 100\n"
      "  headroom train --model qwen3-0.6b --data tokens.bin --context 8192 --steps 1000 --out run\n"
      "  headroom train --model qwen3-4b --data tokens.bin --context 131072 --device cuda:0 --steps 100 "
      "--out run\n"
      "  headroom train --model demo --data recall --context 16384 --ranks 4 --steps 150 --out run\n"
      "  mpirun -n 4 headroom train --model demo --data recall --context 16384 --steps 150 --out run\n"
      "Ctrl-C saves and leaves, and so do SIGTERM and SIGHUP; the same command with --resume goes on.");
  app.callback([options, &out] { train(*options, out); });
}

}  // namespace headroom
