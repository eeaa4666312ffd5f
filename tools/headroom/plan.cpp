// headroom plan: what a training step would take, by stage and category; the strategy that fits, how long it
// takes, the largest context that fits, and what single changes would save. Runs nothing.
#include <fmt/ostream.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "cli.h"
#include "command.h"
#include "headroom/core/bytes.h"
#include "headroom/core/parse.h"
#include "headroom/core/text.h"
#include "headroom/eager.h"
#include "headroom/jobs.h"
#include "ring_page.h"
#include "run_options.h"

namespace headroom {
namespace {

struct Options {
  PlanOptions plan;
  std::string optimizer = "adamw";
  std::string runtime = "headroom";
  std::string torch_attention = "sdpa";
  std::string torch_loss = "recompute";
  bool no_checkpointing = false;
  std::string ranks = "1";
  bool crossover = false;
  std::optional<std::string> program;
  std::optional<std::string> html;
  bool json = false;
};

std::string largest_categories(const CategoryBytes& bytes) {
  std::vector<std::pair<std::int64_t, std::string_view>> order;
  for (int i = 0; i < kCategoryCount; ++i) {
    const std::int64_t value = bytes[static_cast<std::size_t>(i)];
    if (value > 0) order.emplace_back(value, name(static_cast<Category>(i)));
  }
  std::ranges::sort(order, std::greater());
  std::string text;
  for (const auto& [value, category] : order)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", category, format_bytes(value));
  return text;
}

// What the ranks hold and exchange.
void print_ranks(const PlanAnswer& answer, std::ostream& out) {
  const PlannedStep& step = answer.plan.step;
  const RankTraffic& traffic = step.traffic;
  fmt::print(out, "ranks     {}{}; memory is that of the rank that takes most\n",
             describe_ranks(step.strategy),
             step.strategy.ring_ranks > 1 ? fmt::format(", attention as {}", way_name(step.strategy)) : "");
  // Where tokens do not divide evenly, there are dozens of kinds that differ by a few bytes.
  constexpr std::size_t kMostListed = 4;
  std::vector<RankShare> shares = step.rank_shares;
  std::ranges::stable_sort(shares, std::greater(), &RankShare::arena_bytes);
  for (std::size_t i = 0; i < std::min(kMostListed, shares.size()); ++i) {
    fmt::print(out, "          {} of them (the first is rank {}): {} tokens, {} arena\n",
               format_count(shares[i].ranks), shares[i].first_rank, format_count(shares[i].tokens),
               format_bytes(shares[i].arena_bytes));
  }
  if (shares.size() > kMostListed) {
    fmt::print(out, "          {} other kinds take {} at least\n", shares.size() - kMostListed,
               format_bytes(shares.back().arena_bytes));
  }
  if (const std::string choice = describe_choice(answer.plan.divisions); !choice.empty()) {
    fmt::print(out, "choice    by estimated time: {}\n", choice);
  }
  fmt::print(out, "link      {}\n", answer.link.name);
  fmt::print(out,
             "messages  {} sent a step by a rank; of {} in attention {} wait for messages (overlap {:.3f}), "
             "bubbles {:.1f} %; sums and gathering {}\n",
             format_bytes(traffic.sent_bytes), seconds_text(traffic.attention_seconds),
             seconds_text(traffic.exposed_seconds), traffic.overlap, 100 * traffic.bubbles,
             seconds_text(traffic.sum_seconds));
}

void print(const PlanAnswer& answer, std::ostream& out) {
  const PlanRequest& request = answer.question.request;
  const ParameterTable table(request.problem.config);
  const PlannedStep& step = answer.plan.step;
  fmt::print(out, "model     {}: {} parameters in {} {}, {}\n", answer.question.model,
             format_count(table.parameters()), request.problem.config.layers,
             request.problem.config.layers == 1 ? "layer" : "layers", name(request.problem.compute_dtype));
  fmt::print(out, "device    {}, budget {}\n", request.device.name, format_bytes(request.budget_bytes));
  for (const std::string& note : answer.notes) fmt::print(out, "note      {}\n", note);
  fmt::print(
      out, "strategy  {}{}\n", describe(step.strategy),
      step.strategy.accumulation > 1 ? fmt::format(", {} micro-steps", step.strategy.accumulation) : "");
  fmt::print(out, "memory    {} arena ({} bytes), live peak {}{}: {}\n", format_bytes(step.arena_bytes),
             format_count(step.arena_bytes), format_bytes(step.live_peak_bytes),
             step.host_bytes > 0 ? fmt::format(", {} on the host", format_bytes(step.host_bytes)) : "",
             answer.plan.fits ? "fits" : "does not fit");
  if (step.strategy.ranks() > 1) print_ranks(answer, out);
  fmt::print(out, "time      {} a step, {} tokens/s (estimated; rates {})\n", seconds_text(step.seconds),
             format_count(static_cast<std::int64_t>(
                 static_cast<double>(request.problem.sizes.batch * request.problem.sizes.context) /
                 std::max(step.seconds, 1e-9))),
             answer.costs.source);
  fmt::print(out, "context   up to {} tokens fit\n\n", format_count(answer.max_context));
  Table stages({"stage", "live", "peak", "at the peak"});
  for (const StepStageUsage& row : answer.stages) {
    stages.add({std::string(name(row.stage)), format_bytes(row.live_bytes), format_bytes(row.peak_bytes),
                largest_categories(row.at_peak)});
  }
  out << stages.text() << "\n" << state_table(answer).text();
  if (!answer.compared.empty()) out << "\n" << compared_table(answer).text();
  if (!answer.changes.empty()) out << "\n" << changes_table(answer).text();
}

void print(const EagerAnswer& answer, std::ostream& out) {
  const EagerQuestion& question = answer.question;
  fmt::print(out, "model     {}, {} tokens, {}, in eager PyTorch: {}\n", question.model,
             format_count(question.sizes.batch * question.sizes.context), name(question.options.dtype),
             describe(question.options));
  fmt::print(out, "device    {}, budget {}\n", question.device.name, format_bytes(question.budget_bytes));
  fmt::print(out, "memory    live peak {}, reserved {} without a limit: {}\n",
             format_bytes(answer.memory.live_peak_bytes), format_bytes(answer.memory.reserved_bytes),
             !answer.failure ? "fits" : "does not fit");
  if (answer.failure) fmt::print(out, "dies      {}\n", describe(*answer.failure));
  fmt::print(out, "context   {} {} tokens fit\n\n", answer.longer_may_fit ? "at least" : "up to",
             format_count(answer.max_context));
  Table stages({"stage", "live", "peak"});
  for (const StageUsage& row : answer.memory.stages) {
    stages.add({row.stage.text(), format_bytes(row.live_bytes), format_bytes(row.peak_bytes)});
  }
  out << stages.text();
}

void print(const RingAnswer& answer, std::ostream& out) {
  const RingSoftmax& ring = answer.ring;
  fmt::print(out, "online softmax of one ring step, {} queries x {} keys, {} heads, {}; budget {}\n\n",
             format_count(ring.seq_q), format_count(ring.seq_k), ring.heads, name(ring.dtype),
             format_bytes(answer.budget_bytes));
  Table table({"chunk function", "live peak", "reserved", "in the budget"});
  for (const RingAnswer::Row& row : answer.rows) {
    table.add({std::string(row.variant), format_bytes(row.memory.live_peak_bytes),
               format_bytes(row.memory.reserved_bytes),
               row.failure ? "dies: " + describe(*row.failure) : std::string("fits")});
  }
  out << table.text();
}

// "; it does not fit on 2 ranks, and the smallest number that fits is 5"
std::string ranks_that_fit(const PlanAnswer& answer) {
  const std::int64_t ranks = answer.question.request.pins.ranks;
  const std::string here = ranks == 1 ? "one rank" : fmt::format("{} ranks", format_count(ranks));
  if (answer.smallest_ranks) {
    return fmt::format("; it does not fit on {}, and the smallest number of ranks that fits is {}", here,
                       format_count(*answer.smallest_ranks));
  }
  return fmt::format("; no number of ranks up to {} fits{}", format_count(kMostPlannedRanks),
                     answer.question.request.pins.sharding == Sharding::none
                         ? ", as each of them has the whole training state; --shard full divides it"
                         : "");
}

[[noreturn]] void fail_shortfall(const PlanAnswer& answer) {
  const PlanRequest& request = answer.question.request;
  const PlannedStep& step = answer.plan.step;
  const auto fitting = std::ranges::find_if(answer.changes, &Change::fits);
  std::string way;
  if (fitting != answer.changes.end()) way = fmt::format("; it fits with this change: {}", fitting->what);
  if (answer.max_context > 0) {
    way +=
        fmt::format("{} {} tokens of context", way.empty() ? "; it fits with at most" : ", or with at most",
                    format_count(answer.max_context));
  }
  way += ranks_that_fit(answer);
  fail(
      ErrorKind::memory,
      "does not fit: the least is {} bytes on the device and {} on the host, the budget {}{} ({} over): {}{}",
      format_count(step.arena_bytes), format_count(step.host_bytes), format_count(request.budget_bytes),
      request.host_budget_bytes > 0 ? fmt::format(" and {}", format_count(request.host_budget_bytes)) : "",
      format_bytes(bytes_over(request, step)),
      largest_categories(answer.plan.layout.rehearsal.usage(Space::device).at_peak), way);
}

EagerOptions eager_options(const Options& options, const PlanRequest& request) {
  EagerOptions eager;
  eager.attention = options.torch_attention == "naive" ? EagerAttention::naive : EagerAttention::sdpa;
  eager.loss = options.torch_loss == "full"       ? EagerLoss::full
               : options.torch_loss == "chunked"  ? EagerLoss::chunked
               : options.torch_loss == "compiled" ? EagerLoss::chunked_compiled
                                                  : EagerLoss::chunked_recompute;
  eager.loss_chunk = options.plan.pins.loss_chunk_tokens.value_or(eager.loss_chunk);
  eager.checkpoint_layers = !options.no_checkpointing;
  eager.adamw = options.optimizer == "adamw";
  eager.dtype = request.problem.compute_dtype;
  // Without an optimizer there is nothing that f32 is for: the model is in its dtype.
  if (eager.adamw) eager.state = request.problem.state;
  return eager;
}

// What a mode would ignore is refused before anything else is looked at.
void check_mode(const Command& command, const Options& options) {
  if (options.program) {
    return command.check_read("--program ring-softmax",
                              {"--program", "--context", "--batch", "--device", "--budget", "--json"});
  }
  check(!options.plan.model.empty(), "--model is required; a built-in name or a Hugging Face folder");
  if (options.runtime == "pytorch") {
    command.check_read(
        "--runtime pytorch",
        {"--runtime", "--model", "--context", "--batch", "--device", "--budget", "--dtype", "--state",
         "--optimizer", "--loss-chunk", "--torch-attention", "--torch-loss", "--no-checkpointing", "--json"});
    check(options.torch_loss != "full" || !options.plan.pins.loss_chunk_tokens,
          "--loss-chunk means nothing with --torch-loss full, which has no chunks");
    return;
  }
  command.check_only_with("--runtime pytorch", {"--torch-attention", "--torch-loss", "--no-checkpointing"});
  check(options.optimizer != "none" || options.plan.pins.shard != "optimizer",
        "--shard optimizer divides the state of an optimizer, and --optimizer none has none");
  check(options.optimizer != "none" || !options.plan.pins.optimizer_state,
        "--optimizer-state means nothing with --optimizer none, which has no state");
}

PlanQuestion question_of(const Options& options) {
  PlanOptions plan = options.plan;
  plan.fewest_ranks = options.ranks == "auto";
  check(!plan.fewest_ranks || !plan.pins.ring,
        "--ring is a part of the ranks, and --ranks auto looks for their number; use one of them");
  if (!plan.fewest_ranks) {
    plan.pins.ranks = parse_whole("--ranks, where it is not auto,", options.ranks, 1, kMostPlannedRanks);
  }
  check(plan.fewest_ranks || plan.pins.ranks > 1 || (!plan.link && !plan.latency_seconds),
        "--link and --latency are of several ranks; add --ranks N or --ranks auto");
  plan.optimizer = options.optimizer == "none" ? OptimizerKind::none : OptimizerKind::adamw;
  return plan_question(plan);
}

// From which context on the ranks are faster than one.
void print_crossover(const PlanQuestion& question, bool as_json, std::ostream& out) {
  const std::int64_t ranks = question.request.pins.ranks;
  check(ranks > 1, "--crossover compares several ranks with one; add --ranks N");
  const NamedLink link = rank_link(question, ranks);
  const std::optional<std::int64_t> context = crossover_context(question, plan_costs(question));
  if (as_json) {
    nlohmann::ordered_json json = {{"model", question.model},
                                   {"device", question.device},
                                   {"ranks", ranks},
                                   {"link", link.name},
                                   {"crossover_context", nullptr}};
    if (context) json["crossover_context"] = *context;
    return print_json(json, out);
  }
  const std::string_view device = question.request.device.name;
  if (context) {
    fmt::print(out, "{} on {} x {} is faster than on one from {} tokens on ({})\n", question.model,
               format_count(ranks), device, format_count(*context), link.name);
  } else {
    fmt::print(out, "{} on {} x {} is not faster than on one up to {} tokens ({})\n", question.model,
               format_count(ranks), device, format_count(question.request.problem.sizes.context), link.name);
  }
}

// The page of the plan, with the schedule of a few ranks as a picture.
Page page_of(const PlanAnswer& answer) {
  constexpr std::int64_t kMostDrawnRanks = 16;
  Page page = plan_page(answer);
  const Strategy& strategy = answer.plan.step.strategy;
  if (strategy.ring_ranks == 1 || strategy.ring_ranks > kMostDrawnRanks) return page;
  const TrainingProblem& problem = answer.question.request.problem;
  const Decoder decoder(problem.config, strategy, problem.sizes, problem.mask);
  const RingSchedule& ring = decoder.schedule(0)->ring();
  page.sections.emplace_back(schedule_chart(ring, "Schedule of a layer's attention"));
  page.sections.emplace_back(schedule_table(ring));
  return page;
}

void run(const Command& command, const Options& options, std::ostream& out, int& exit_code) {
  check_mode(command, options);
  const auto tell = [&](const auto& answer, bool fits) {
    if (options.json) {
      out << json(answer);
    } else {
      print(answer, out);
    }
    if (!fits) exit_code = static_cast<int>(ErrorKind::memory);
  };
  if (options.program) {
    const PlanOptions& plan = options.plan;
    const PlannedDevice device = find_planned_device(plan.device, plan.budget_bytes);
    const RingAnswer ring =
        answer_ring_softmax({.batch = plan.batch, .seq_q = plan.context, .seq_k = plan.context},
                            device.description, device.budget_bytes);
    return tell(ring,
                std::ranges::none_of(ring.rows, [](const auto& row) { return row.failure.has_value(); }));
  }
  const PlanQuestion question = question_of(options);
  if (options.runtime == "pytorch") {
    const PlanRequest& request = question.request;
    const EagerAnswer eager = answer_eager({.model = question.model,
                                            .config = request.problem.config,
                                            .sizes = request.problem.sizes,
                                            .options = eager_options(options, request),
                                            .device = request.device,
                                            .budget_bytes = request.budget_bytes});
    return tell(eager, !eager.failure);
  }
  if (options.crossover) return print_crossover(question, options.json, out);
  const PlanAnswer answer = answer_plan(question, plan_costs(question));
  if (options.html) write_html(*options.html, page_of(answer));
  tell(answer, answer.plan.fits);
  if (!answer.plan.fits) fail_shortfall(answer);
}

}  // namespace

void add_plan(Command app, std::ostream& out, int& exit_code) {
  auto options = std::make_shared<Options>();
  PlanOptions& plan = options->plan;
  app.add_text(
      "--model", plan.model,
      "demo, qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b, qwen3-14b, qwen3-32b, llama3-8b, llama3-70b, or a "
      "Hugging Face folder");
  app.add_whole("--context", plan.context, 1, kMostTokens, "Tokens of a sequence")->required();
  app.add_whole("--batch", plan.batch, 1, kMostTokens, "Sequences of an update");
  app.add_text("--device", plan.device,
               "cpu (this one), a100-40, a100-80, h100, h200, b200, rtx-3090, rtx-4090, p100, gtx-1080");
  app.add_budget("--budget", plan.budget_bytes, "Bytes of the device, such as 80GiB (default: what it has)");
  app.add_budget("--host-budget", plan.host_budget_bytes,
                 "Host memory that layer inputs and the optimizer's state may move to (default: none)");
  app.add_text("--attention", plan.attention, "causal, window:N, causal+dilated:SEGMENT/RATE");
  app.add_text("--dtype", plan.dtype, "f32, bf16 or f16 (default: what is fast on the device)");
  add_state_option(app, plan.state);
  app.add_choice("--optimizer", options->optimizer, {"adamw", "none"},
                 "adamw, or none: forward and backward alone");
  add_pin_options(app, plan.pins);
  app.add_text("--ranks", options->ranks,
               "Devices that train together, 1 to 1,024, or auto: as few as fit; budgets are those of one");
  add_rank_options(app, plan.pins);
  add_link_options(app, plan.link, plan.latency_seconds);
  app.add_flag("--crossover", options->crossover,
               "Instead of a plan: from which context on, up to --context, the ranks are faster than one");
  app.add_whole("--accumulation", plan.pins.accumulation, 1, kMostTokens,
                "Pins the micro-steps that share a batch");
  app.add_choice("--runtime", options->runtime, {"headroom", "pytorch"},
                 "headroom, or pytorch: the same model in eager PyTorch");
  app.add_choice("--torch-attention", options->torch_attention, {"sdpa", "naive"},
                 "With --runtime pytorch: sdpa, or naive: scores held");
  app.add_choice("--torch-loss", options->torch_loss, {"full", "chunked", "recompute", "compiled"},
                 "With --runtime pytorch: full logits, chunked, recompute (chunks made again), compiled");
  app.add_flag("--no-checkpointing", options->no_checkpointing,
               "With --runtime pytorch: layers keep their activations");
  app.add_choice("--program", options->program, {"ring-softmax"},
                 "Instead of a model: a ring-attention rank's chunk function of --context keys");
  app.add_flag("--compare", plan.compare, "The naive way and full recomputation beside the chosen one");
  add_html_option(app, options->html);
  app.add_flag("--json", options->json, "For machines; keys in docs/cli.md");
  app.footer(
      "Examples:\n"
      "  headroom plan --model qwen3-4b --context 131072 --device h200\n"
      "  headroom plan --model qwen3-0.6b --context 32768 --budget 16GiB --compare\n"
      "  headroom plan --model qwen3-4b --context 131072 --device h200 --runtime pytorch --optimizer none\n"
      "  headroom plan --model qwen3-4b --context 524288 --device h200 --ranks 8\n"
      "  headroom plan --model qwen3-4b --context 10485760 --device h200 --ranks 1024 --link 400Gb/s "
      "--latency 5us\n"
      "  headroom plan --model qwen3-4b --context 1048576 --device h200 --ranks auto\n"
      "  headroom plan --model qwen3-4b --context 131072 --device h200 --ranks 2 --link 100Gb/s --crossover\n"
      "  headroom plan --program ring-softmax --context 8192 --device gtx-1080 --budget 2793MiB\n"
      "Needs neither the device nor weights. Exit code 3: nothing fits.");
  app.callback([app, options, &out, &exit_code] { run(app, *options, out, exit_code); });
}

}  // namespace headroom
