// headroom plan: what a training step would take, by stage and category; the strategy that fits, how long it
// takes, the largest context that fits, and what single changes would save. Runs nothing.
#include <fmt/ostream.h>

#include <algorithm>
#include <ostream>
#include <string>

#include "cli.h"
#include "command.h"
#include "headroom/core/bytes.h"
#include "headroom/core/text.h"
#include "headroom/eager.h"
#include "headroom/jobs.h"
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
  if (step.strategy.ranks() > 1) {
    fmt::print(out, "ranks     {}; this is what the one that takes most takes\n",
               describe_ranks(step.strategy));
  }
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
  plan.optimizer = options.optimizer == "none" ? OptimizerKind::none : OptimizerKind::adamw;
  return plan_question(plan);
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
  const PlanAnswer answer = answer_plan(question, plan_costs(question));
  if (options.html) write_html(*options.html, plan_page(answer));
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
  app.add_whole("--ranks", plan.pins.ranks, 1, kMostPlannedRanks,
                "Devices that train together; budgets and the answer are those of one of them");
  add_rank_options(app, plan.pins);
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
      "  headroom plan --program ring-softmax --context 8192 --device gtx-1080 --budget 2793MiB\n"
      "Needs neither the device nor weights. Exit code 3: nothing fits.");
  app.callback([app, options, &out, &exit_code] { run(app, *options, out, exit_code); });
}

}  // namespace headroom
