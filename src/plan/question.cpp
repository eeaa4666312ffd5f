#include "headroom/plan/question.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "headroom/core/bytes.h"
#include "headroom/core/parse.h"
#include "headroom/core/text.h"
#include "headroom/plan/catalogue.h"
#include "plan/causal_mask.h"
#include "plan/search_space.h"

namespace headroom {
namespace {

// What the driver keeps of a GPU for itself once a program uses it.
constexpr std::int64_t kDriverBytes = 600 * kMiB;

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
                         std::numeric_limits<std::int32_t>::max());
  }
  const std::int64_t sum = policy.keep_all + policy.keep_attention + policy.recompute + policy.offload;
  check(policy.input_every == 1 || policy.recompute > 0,
        "{}: every:{} means nothing where no layer is recomputed", what, policy.input_every);
  check(sum == layers, "{} are {} layers, the model has {}; accepted: {}", what, sum, layers, kAccepted);
  return policy;
}

}  // namespace

StrategyPins strategy_pins(const PinOptions& options, std::int64_t layers) {
  StrategyPins pins{.layers = {},
                    .loss_chunk_tokens = options.loss_chunk_tokens,
                    .mlp_tile_tokens = options.mlp_tile_tokens,
                    .accumulation = options.accumulation,
                    .offload_optimizer = {},
                    .ranks = options.ranks,
                    .ring = options.ring,
                    .sharding = {}};
  if (options.shard) pins.sharding = parse_sharding(*options.shard);
  check(pins.ranks % pins.ring_ranks() == 0, "--ring {} does not divide --ranks {}; accepted: {}",
        pins.ring_ranks(), pins.ranks, fmt::join(divisors_of(pins.ranks), ", "));
  check(
      pins.sharding.value_or(Sharding::none) == Sharding::none || pins.ranks > 1,
      "--shard {} divides state over ranks, and there is one; use --ranks 2 or more with it, or --shard none",
      options.shard.value_or(""));
  if (options.loss_ranks) {
    pins.loss_ranks = parse_loss_ranks(*options.loss_ranks);
    check(*pins.loss_ranks == LossRanks::tokens || pins.ranks > 1,
          "--loss-ranks {} divides the loss over ranks, and there is one; use --ranks 2 or more with it, or "
          "--loss-ranks tokens",
          *options.loss_ranks);
  }
  if (options.layers) pins.layers = parse_layers(*options.layers, layers);
  if (options.optimizer_state) pins.offload_optimizer = *options.optimizer_state == "host";
  return pins;
}

PlannedDevice find_catalogue_device(std::string_view name, std::optional<std::int64_t> budget_bytes) {
  const DeviceDescription& device = find_in_catalogue(name).device;
  return {device, budget_bytes.value_or(device.memory_bytes - kDriverBytes)};
}

DType default_training_dtype(const DeviceDescription& device) {
  const DType dtype = default_dtype(device).dtype;
  return dtype == DType::f16 ? DType::f32 : dtype;
}

void check_training_dtype(const DeviceDescription& device, DType dtype) {
  check(dtype == DType::f32 || dtype == DType::bf16, "dtype '{}' cannot be trained in; use f32 or bf16",
        name(dtype));
  check(dtype == DType::f32 || device.kind == DeviceKind::cpu || device.compute_major >= 8,
        "dtype '{}' cannot be trained in on {}, whose compute capability is {}.{}; use f32, or a GPU from "
        "8.0 on",
        name(dtype), device.name, device.compute_major, device.compute_minor);
}

PlanQuestion plan_question(const PlanOptions& options, const FoundModel& model, const PlannedDevice& device) {
  PlanRequest request;
  request.problem.config = model.config;
  request.problem.sizes = {.batch = options.batch, .context = options.context};
  request.problem.mask = causal_mask(options.attention);
  request.problem.compute_dtype =
      options.dtype ? parse_dtype(*options.dtype) : default_training_dtype(device.description);
  request.problem.state = parse_state(options.state);
  check_state(request.problem.state, request.problem.compute_dtype);
  request.problem.optimizer.kind = options.optimizer;
  request.device = device.description;
  request.budget_bytes = device.budget_bytes;
  request.host_budget_bytes = options.host_budget_bytes.value_or(0);
  PinOptions pins = options.pins;
  // How many ranks there are is not known yet, so nothing is wrong with dividing the state of one.
  if (options.fewest_ranks) {
    pins.shard.reset();
    pins.loss_ranks.reset();
  }
  request.pins = strategy_pins(pins, model.config.layers);
  if (options.pins.shard) request.pins.sharding = parse_sharding(*options.pins.shard);
  if (options.pins.loss_ranks) request.pins.loss_ranks = parse_loss_ranks(*options.pins.loss_ranks);
  PlanQuestion question{.model = options.model,
                        .device = options.device,
                        .request = request,
                        .notes = model.notes,
                        .compare = options.compare,
                        .fewest_ranks = options.fewest_ranks};
  if (options.link) question.link_bytes_per_second = parse_link_rate(*options.link);
  if (options.latency_seconds) question.link_latency = Seconds(*options.latency_seconds);
  return question;
}

PlanCosts catalogue_costs(const PlanQuestion& question) {
  const CatalogueEntry& entry = find_in_catalogue(question.device);
  return {entry.costs(question.request.problem.compute_dtype), std::string(entry.source)};
}

}  // namespace headroom
