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
#include "headroom/core/text.h"
#include "headroom/device.h"
#include "headroom/plan.h"
#include "headroom/report.h"
#include "plan_eager.h"
#include "plan_page.h"
#include "rates.h"

namespace headroom {
namespace {

struct Options {
  std::string model;
  std::int64_t context = 0;
  std::int64_t batch = 1;
  std::string device = "cpu";
  std::optional<std::int64_t> budget;
  std::optional<std::int64_t> host_budget;
  std::string attention = "causal";
  std::optional<std::string> dtype;
  std::string optimizer = "adamw";
  std::optional<std::string> layers;
  std::optional<std::int64_t> loss_chunk;
  std::optional<std::int64_t> mlp_tile;
  std::optional<std::int64_t> accumulation;
  std::optional<std::string> optimizer_state;
  std::string runtime = "headroom";
  std::string torch_attention = "sdpa";
  std::string torch_loss = "recompute";
  bool no_checkpointing = false;
  std::optional<std::string> program;
  bool compare = false;
  std::optional<std::string> html;
  bool json = false;
};

// What the driver keeps of a GPU for itself once a program uses it.
constexpr std::int64_t kDriverBytes = 600 * kMiB;

struct PlannedDevice {
  DeviceDescription description;
  std::int64_t budget_bytes = 0;
  std::string rates;  // where they come from
};

PlannedDevice find_planned_device(const Options& options) {
  PlannedDevice device;
  std::int64_t free_bytes = 0;
  if (options.device == "cpu") {
    const ListedDevice listed = find_device(parse_device("cpu"));
    device.description = listed.description;
    device.rates = "assumed; headroom bench step --calibrate measures them";
    free_bytes = default_budget(listed.memory);
  } else {
    const CatalogueEntry& entry = find_in_catalogue(options.device);
    device.description = entry.device;
    device.rates = entry.source;
    free_bytes = entry.device.memory_bytes - kDriverBytes;
  }
  device.budget_bytes = options.budget.value_or(free_bytes);
  return device;
}

// "keep:8,attention:4,recompute:20,offload:4,every:2"
LayerPolicy parse_layers(std::string_view text, std::int64_t layers) {
  constexpr std::string_view kAccepted =
      "parts of keep:N,attention:N,recompute:N,offload:N that add up to the layers, and every:N";
  const std::string what = fmt::format("--layers {}", quote(text));
  LayerPolicy policy;
  std::vector<std::string_view> kinds;
  for (const std::string_view part : parse_list(what, text)) {
    const std::size_t colon = std::min(part.find(':'), part.size());
    const std::string_view kind = part.substr(0, colon);
    std::int64_t* count = kind == "keep"        ? &policy.keep_all
                          : kind == "attention" ? &policy.keep_attention
                          : kind == "recompute" ? &policy.recompute
                          : kind == "offload"   ? &policy.offload
                          : kind == "every"     ? &policy.input_every
                                                : nullptr;
    check(count != nullptr && colon < part.size(), "{}: {} is unknown; accepted: {}", what, quote(part),
          kAccepted);
    check(std::ranges::find(kinds, kind) == kinds.end(), "{} has {} twice", what, kind);
    kinds.push_back(kind);
    *count = parse_whole(fmt::format("{}: {}", what, kind), part.substr(colon + 1), kind == "every" ? 1 : 0,
                         kMostTokens);
  }
  const std::int64_t sum = policy.keep_all + policy.keep_attention + policy.recompute + policy.offload;
  check(policy.input_every == 1 || policy.recompute > 0,
        "{}: every:{} means nothing where no layer is recomputed", what, policy.input_every);
  check(sum == layers, "{} are {} layers, the model has {}; accepted: {}", what, sum, layers, kAccepted);
  return policy;
}

PlanRequest make_request(const Options& options, const PlannedDevice& device, const ModelConfig& config) {
  PlanRequest request;
  request.problem.config = config;
  request.problem.sizes = {.batch = options.batch, .seq = options.context};
  request.problem.mask = parse_mask(options.attention);
  request.problem.compute_dtype =
      options.dtype ? parse_dtype(*options.dtype) : default_dtype(device.description).dtype;
  request.problem.optimizer.kind = options.optimizer == "none" ? OptimizerKind::none : OptimizerKind::adamw;
  request.device = device.description;
  request.budget_bytes = device.budget_bytes;
  request.host_budget_bytes = options.host_budget.value_or(0);
  request.pins.loss_chunk_tokens = options.loss_chunk;
  request.pins.mlp_tile_tokens = options.mlp_tile;
  request.pins.accumulation = options.accumulation;
  if (options.optimizer_state) request.pins.offload_optimizer = *options.optimizer_state == "host";
  if (options.layers) request.pins.layers = parse_layers(*options.layers, request.problem.config.layers);
  check(request.problem.mask.causal, "attention '{}' lets a token see what it is to predict; add causal",
        options.attention);
  return request;
}

std::vector<PlanAnswer::Compared> compare(const PlanRequest& request, const Plan& plan,
                                          const CostModel& costs) {
  std::vector<PlanAnswer::Compared> rows;
  try {
    rows.push_back({.name = "naive: scores and logits held",
                    .bytes = naive_training_bytes(request.problem, rehearsed_on(request.device))});
  } catch (const Error&) {
    // More bytes than 64 bits count: at a hundred million tokens scores are.
  }
  const auto add = [&](std::string_view name, const PlannedStep& step) {
    rows.push_back({.name = std::string(name),
                    .bytes = step.arena_bytes + step.host_bytes,
                    .host_bytes = step.host_bytes,
                    .seconds = step.seconds});
  };
  Strategy checkpointed = plan.step.strategy;
  checkpointed.layers = {.recompute = request.problem.config.layers};
  add("every layer recomputed", plan_step(request, checkpointed, costs));
  if (!one_memory(request) && request.problem.optimizer.kind != OptimizerKind::none) {
    Strategy moved = plan.step.strategy;
    moved.offload_optimizer = !moved.offload_optimizer;
    add(moved.offload_optimizer ? "optimizer on the host" : "optimizer on the device",
        plan_step(request, moved, costs));
  }
  add("chosen", plan.step);
  return rows;
}

nlohmann::ordered_json to_json(const Options& options, const PlanRequest& request, const PlanAnswer& answer) {
  const Usage& usage = answer.plan.layout.rehearsal.usage(Space::device);
  nlohmann::ordered_json by_category;
  for (int i = 0; i < kCategoryCount; ++i) {
    const std::int64_t bytes = usage.at_peak[static_cast<std::size_t>(i)];
    if (bytes > 0) by_category[std::string(name(static_cast<Category>(i)))] = bytes;
  }
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const StageUsage& row : answer.stages) {
    stages.push_back({{"stage", row.stage}, {"live_bytes", row.live_bytes}, {"peak_bytes", row.peak_bytes}});
  }
  nlohmann::ordered_json advice = nlohmann::ordered_json::array();
  for (const Change& change : answer.changes) {
    advice.push_back({{"change", change.what},
                      {"saved_bytes", change.saved_bytes},
                      {"added_seconds", change.added_seconds},
                      {"fits", change.fits}});
  }
  const PlannedStep& step = answer.plan.step;
  nlohmann::ordered_json json = {{"model", options.model},
                                 {"context", options.context},
                                 {"batch", options.batch},
                                 {"device", options.device},
                                 {"dtype", name(request.problem.compute_dtype)},
                                 {"fits", answer.plan.fits},
                                 {"arena_bytes", step.arena_bytes},
                                 {"live_peak_bytes", step.live_peak_bytes},
                                 {"reserved_bytes", step.arena_bytes},
                                 {"host_bytes", step.host_bytes},
                                 {"budget_bytes", request.budget_bytes},
                                 {"by_category", by_category},
                                 {"by_stage", stages},
                                 {"strategy", describe(step.strategy)},
                                 {"optimizer_state", nullptr},
                                 {"max_context", answer.max_context},
                                 {"step_seconds", step.seconds},
                                 {"rates", answer.rates},
                                 {"advice", advice}};
  if (request.problem.optimizer.kind != OptimizerKind::none)
    json["optimizer_state"] = step.strategy.offload_optimizer ? "host" : "device";
  if (answer.warning) json["warning"] = *answer.warning;
  if (!answer.notes.empty()) json["notes"] = answer.notes;
  for (const PlanAnswer::Compared& row : answer.compared) {
    json["compare"].push_back({{"strategy", row.name},
                               {"bytes", row.bytes},
                               {"host_bytes", row.host_bytes},
                               {"step_seconds", row.seconds}});
  }
  return json;
}

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

void print(const Options& options, const PlanRequest& request, const PlanAnswer& answer, std::ostream& out) {
  const ParameterTable table(request.problem.config);
  const PlannedStep& step = answer.plan.step;
  fmt::print(out, "model     {}: {} parameters in {} {}, {}\n", options.model,
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
  fmt::print(out, "time      {} a step, {} tokens/s (rates {})\n", seconds_text(step.seconds),
             format_count(static_cast<std::int64_t>(static_cast<double>(options.batch * options.context) /
                                                    std::max(step.seconds, 1e-9))),
             answer.rates);
  fmt::print(out, "context   up to {} tokens fit\n\n", format_count(answer.max_context));
  Table stages({"stage", "live", "peak", "at the peak"});
  for (const StageUsage& row : answer.stages) {
    stages.add({row.stage, format_bytes(row.live_bytes), format_bytes(row.peak_bytes),
                largest_categories(row.at_peak)});
  }
  out << stages.text();
  if (!answer.compared.empty()) out << "\n" << compared_table(answer).text();
  if (!answer.changes.empty()) out << "\n" << changes_table(answer).text();
}

[[noreturn]] void fail_shortfall(const PlanRequest& request, const PlanAnswer& answer) {
  const PlannedStep& step = answer.plan.step;
  const auto fitting = std::ranges::find_if(answer.changes, &Change::fits);
  std::string way;
  if (fitting != answer.changes.end()) way = fmt::format("; it would with: {}", fitting->what);
  if (answer.max_context > 0) {
    way += fmt::format("{} {} tokens of context", way.empty() ? "; it would with" : ", or",
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
  eager.loss_chunk = options.loss_chunk.value_or(eager.loss_chunk);
  eager.checkpoint_layers = !options.no_checkpointing;
  eager.adamw = options.optimizer == "adamw";
  eager.dtype = request.problem.compute_dtype;
  return eager;
}

// What a mode would ignore is refused before anything else is looked at.
void check_mode(const Command& command, const Options& options) {
  if (options.program) {
    return command.check_read("--program ring-softmax",
                              {"--program", "--context", "--batch", "--device", "--budget", "--json"});
  }
  check(!options.model.empty(), "--model is required; a built-in name or a Hugging Face folder");
  if (options.runtime == "pytorch") {
    command.check_read(
        "--runtime pytorch",
        {"--runtime", "--model", "--context", "--batch", "--device", "--budget", "--dtype", "--optimizer",
         "--loss-chunk", "--torch-attention", "--torch-loss", "--no-checkpointing", "--json"});
    check(options.torch_loss != "full" || !options.loss_chunk,
          "--loss-chunk means nothing with --torch-loss full, which has no chunks");
    return;
  }
  command.check_only_with("--runtime pytorch", {"--torch-attention", "--torch-loss", "--no-checkpointing"});
  check(options.optimizer != "none" || !options.optimizer_state,
        "--optimizer-state means nothing with --optimizer none, which has no state");
}

void plan(const Command& command, const Options& options, std::ostream& out, int& exit_code) {
  check_mode(command, options);
  const PlannedDevice device = find_planned_device(options);
  const auto say_whether = [&](bool fits) {
    if (!fits) exit_code = static_cast<int>(ErrorKind::memory);
  };
  if (options.program) {
    const RingSoftmax ring{.batch = options.batch, .seq_q = options.context, .seq_k = options.context};
    return say_whether(plan_ring_softmax({.ring = ring,
                                          .device = device.description,
                                          .budget_bytes = device.budget_bytes,
                                          .json = options.json},
                                         out));
  }
  const FoundModel model = open_model(options.model);
  const PlanRequest request = make_request(options, device, model.config);
  if (options.runtime == "pytorch") {
    return say_whether(plan_eager({.model = options.model,
                                   .request = request,
                                   .options = eager_options(options, request),
                                   .json = options.json},
                                  out));
  }
  CostModel costs(device.description, request.problem.compute_dtype);
  PlanAnswer answer;
  answer.rates = device.rates;
  if (options.device == "cpu") {
    const MachineCosts machine = this_machine(device.description, request.problem.compute_dtype);
    costs = machine.costs;
    if (machine.measured) answer.rates = "measured on this machine";
  }
  answer.warning = dtype_warning(device.description, request.problem.compute_dtype);
  answer.notes = model.notes;
  if (answer.warning) answer.notes.push_back(*answer.warning);
  if (request.device.kind == DeviceKind::cuda)
    answer.notes.emplace_back(
        "GPUs have no step of ours yet, attention alone: workspaces are those of the CPU's");
  answer.plan = make_plan(request, costs);
  answer.stages = step_stages(answer.plan.layout.rehearsal);
  answer.changes = what_if(request, answer.plan, costs);
  if (options.compare) answer.compared = compare(request, answer.plan, costs);
  answer.max_context = std::max(largest_context(request, costs), answer.plan.fits ? options.context : 0);
  if (options.html) write_html(*options.html, plan_page(options.model, request, answer, costs));
  if (options.json) {
    print_json(to_json(options, request, answer), out);
  } else {
    print(options, request, answer, out);
  }
  if (!answer.plan.fits) fail_shortfall(request, answer);
}

}  // namespace

void add_plan(Command app, std::ostream& out, int& exit_code) {
  auto options = std::make_shared<Options>();
  app.add_text(
      "--model", options->model,
      "demo, qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b, qwen3-14b, qwen3-32b, llama3-8b, llama3-70b, or a "
      "Hugging Face folder");
  app.add_whole("--context", options->context, 1, kMostTokens, "Tokens of a sequence")->required();
  app.add_whole("--batch", options->batch, 1, kMostTokens, "Sequences of an update");
  app.add_text("--device", options->device,
               "cpu (this one), a100-40, a100-80, h100, h200, b200, rtx-3090, rtx-4090, p100, gtx-1080");
  app.add_budget("--budget", options->budget, "Bytes of the device, such as 80GiB (default: what it has)");
  app.add_budget("--host-budget", options->host_budget,
                 "Host memory that layer inputs and the optimizer's state may move to (default: none)");
  app.add_text("--attention", options->attention, "causal, window:N, causal+dilated:SEGMENT/RATE");
  app.add_text("--dtype", options->dtype, "f32, bf16 or f16 (default: what is fast on the device)");
  app.add_choice("--optimizer", options->optimizer, {"adamw", "none"},
                 "adamw, or none: forward and backward alone");
  app.add_text("--layers", options->layers,
               "Pins what layers do: keep:8,attention:4,recompute:24 (also offload:N, every:N)");
  app.add_whole("--loss-chunk", options->loss_chunk, 1, kMostTokens,
                "Pins the tokens of a chunk of the loss");
  app.add_whole("--mlp-tile", options->mlp_tile, 1, kMostTokens, "Pins the tokens of a tile of the MLP");
  app.add_whole("--accumulation", options->accumulation, 1, kMostTokens,
                "Pins the micro-steps that share a batch");
  app.add_choice("--optimizer-state", options->optimizer_state, {"device", "host"},
                 "Pins where moments and master weights live");
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
  app.add_flag("--compare", options->compare, "The naive way and full recomputation beside the chosen one");
  add_html_option(app, options->html);
  app.add_flag("--json", options->json, "For machines; keys in docs/cli.md");
  app.footer(
      "Examples:\n"
      "  headroom plan --model qwen3-4b --context 131072 --device h200\n"
      "  headroom plan --model qwen3-0.6b --context 32768 --budget 16GiB --compare\n"
      "  headroom plan --model qwen3-4b --context 131072 --device h200 --runtime pytorch --optimizer none\n"
      "  headroom plan --program ring-softmax --context 8192 --device gtx-1080 --budget 2793MiB\n"
      "Needs neither the device nor weights. Exit code 3: nothing fits.");
  app.callback([app, options, &out, &exit_code] { plan(app, *options, out, exit_code); });
}

}  // namespace headroom
