#include "plan/search_space.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <ranges>

#include "headroom/core/bytes.h"
#include "headroom/core/checked.h"
#include "headroom/parallel/vocabulary_loss.h"
#include "headroom/parallel/ways.h"

namespace headroom {
namespace {

// What a search may cost, in layers looked at: the time of a strategy is a sum over layers. So many take
// half a second: 64 layers with offloading on a CPU, 46 on a GPU.
constexpr std::int64_t kMaxLayersLookedAt = 170'000'000;
constexpr std::size_t kMaxAccumulations = 32;
constexpr std::size_t kMaxRings = 6;        // each takes some ten rehearsals for every sharding
constexpr std::int64_t kMaxOffloads = 128;  // counts of offloaded layers among the smallest policies

// Every how many-th of the recomputed layers may keep its input.
std::vector<std::int64_t> input_everies(std::int64_t layers) {
  std::vector<std::int64_t> everies = {1};
  const auto root = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(layers))));
  for (const std::int64_t every : {std::int64_t{2}, root}) {
    if (every > everies.back() && every <= layers) everies.push_back(every);
  }
  return everies;
}

// Counts of keep all, keep attention, recompute and offload that add up to the layers; kinds change at
// multiples of `step`.
std::vector<LayerPolicy> layer_policies(std::int64_t layers, bool offload, std::int64_t step) {
  const std::vector<std::int64_t> everies = input_everies(layers);
  std::vector<std::int64_t> edges;  // where kinds may change, the last layer's end first
  for (std::int64_t edge = round_up(layers, step); edge >= 0; edge -= step)
    edges.push_back(std::min(edge, layers));
  std::vector<LayerPolicy> policies;
  for (std::size_t all = 0; all < edges.size(); ++all) {
    for (std::size_t attention = 0; attention <= all; ++attention) {
      for (std::size_t recompute = 0; recompute <= (offload ? attention : 0); ++recompute) {
        const LayerPolicy policy{.keep_all = edges[all],
                                 .keep_attention = edges[attention] - edges[all],
                                 .recompute = edges[recompute] - edges[attention],
                                 .offload = layers - edges[recompute]};
        for (const std::int64_t every : everies) {
          if (every > std::max<std::int64_t>(policy.recompute, 1)) break;
          policies.push_back(policy);
          policies.back().input_every = every;
        }
      }
    }
  }
  return policies;
}

// The smallest step between the layers at which kinds may change for which the whole space, with so many ways
// to cut everything else, can be looked at.
std::int64_t policy_step(std::int64_t layers, bool offload, std::int64_t cuts) {
  const auto everies = std::ssize(input_everies(layers));
  for (std::int64_t step = 1;; ++step) {
    const auto edges = static_cast<double>(divide_up(layers, step) + 1);
    const double splits = offload ? edges * (edges + 1) * (edges + 2) / 6 : edges * (edges + 1) / 2;
    if (step >= layers ||
        splits * static_cast<double>(everies * cuts * layers) <= static_cast<double>(kMaxLayersLookedAt))
      return step;
  }
}

// All of the numbers, or at most so many, evenly spread on a logarithmic scale, with the first and the last.
// They ascend.
std::vector<std::int64_t> spread_out(std::vector<std::int64_t> numbers, std::size_t most) {
  if (numbers.size() <= most) return numbers;
  const auto first = static_cast<double>(numbers.front());
  const double whole = static_cast<double>(numbers.back()) / first;
  std::vector<std::int64_t> some;
  for (std::size_t i = 0; i < most; ++i) {
    const double wanted = first * std::pow(whole, static_cast<double>(i) / static_cast<double>(most - 1));
    const auto found = std::ranges::lower_bound(
        numbers, wanted, {}, [](std::int64_t number) { return static_cast<double>(number) * (1 + 1e-12); });
    const std::int64_t number = found == numbers.end() ? numbers.back() : *found;
    if (some.empty() || number > some.back()) some.push_back(number);
  }
  return some;
}

// No value twice.
template <class Value>
void add_new(std::vector<Value>& values, const Value& value) {
  if (std::ranges::find(values, value) == values.end()) values.push_back(value);
}

// Whether groups of so many ranks can divide every sequence, and the number of groups the batch.
bool divides(const PlanRequest& request, std::int64_t ring) {
  const std::int64_t micro_batch = request.problem.sizes.batch / request.pins.accumulation.value_or(1);
  return ring <= request.problem.sizes.context && micro_batch % (request.pins.ranks / ring) == 0;
}

std::vector<std::int64_t> ring_choices(const PlanRequest& request) {
  if (request.pins.ring) return {*request.pins.ring};
  std::vector<std::int64_t> rings = divisors_of(request.pins.ranks);
  std::erase_if(rings, [&](std::int64_t ring) { return !divides(request, ring); });
  if (rings.empty()) return {request.pins.ranks};  // which is refused, with the reason
  rings = spread_out(std::move(rings), kMaxRings);
  std::ranges::reverse(rings);
  return rings;
}

std::vector<Sharding> sharding_choices(const PlanRequest& request) {
  if (request.pins.ranks == 1) return {Sharding::none};
  if (request.pins.sharding) return {*request.pins.sharding};
  const std::int64_t slices = ParameterTable(request.problem.config).elements() / ParameterTable::kAlignment;
  if (slices < request.pins.ranks) return {Sharding::none};
  if (request.problem.optimizer.kind == OptimizerKind::none) return {Sharding::none, Sharding::full};
  return {Sharding::none, Sharding::optimizer, Sharding::full};
}

// One rank divides nothing, whatever is pinned.
std::vector<LossRanks> loss_ranks_choices(const PlanRequest& request) {
  if (request.pins.ranks == 1) return {LossRanks::tokens};
  if (request.pins.loss_ranks) return {*request.pins.loss_ranks};
  return {LossRanks::tokens, LossRanks::vocabulary};
}

}  // namespace

std::vector<std::int64_t> divisors_of(std::int64_t value) {
  std::vector<std::int64_t> divisors, large;
  for (std::int64_t divisor = 1; divisor * divisor <= value; ++divisor) {
    if (value % divisor != 0) continue;
    divisors.push_back(divisor);
    if (divisor != value / divisor) large.push_back(value / divisor);
  }
  divisors.insert(divisors.end(), large.rbegin(), large.rend());
  return divisors;
}

std::vector<PlanRequest> division_choices(const PlanRequest& request) {
  std::vector<PlanRequest> divisions;
  for (const std::int64_t ring : ring_choices(request)) {
    for (const Sharding sharding : sharding_choices(request)) {
      for (const LossRanks loss_ranks : loss_ranks_choices(request)) {
        PlanRequest& division = divisions.emplace_back(request);
        division.pins.ring = ring;
        division.pins.sharding = sharding;
        division.pins.loss_ranks = loss_ranks;
      }
    }
  }
  return divisions;
}

std::vector<PlanRequest> least_divisions(const PlanRequest& request) {
  std::vector<PlanRequest> divisions;
  for (const LossRanks loss_ranks : loss_ranks_choices(request)) {
    PlanRequest& division = divisions.emplace_back(request);
    division.pins.sharding = sharding_choices(request).back();
    division.pins.loss_ranks = loss_ranks;
  }
  return divisions;
}

std::int64_t fastest_head_group(const PlanRequest& request, const CostModel& costs) {
  const auto ranks = static_cast<int>(request.pins.ring_ranks());
  if (ranks == 1) return 1;
  AttentionProblem whole = attention_problem(request.problem, request.problem.mask);
  // A micro-step of one sequence: dividing a batch further does not change what is faster.
  whole.batch = 1;
  return choose_way(whole, {}, make_partition(PartitionKind::zigzag, ranks, whole, {}), costs.rank_rates())
      .group;
}

Strategy common_strategy(const PlanRequest& request, std::int64_t head_group) {
  Strategy strategy;
  strategy.ring_ranks = request.pins.ring_ranks();
  strategy.data_ranks = request.pins.data_ranks();
  strategy.head_group = head_group;
  strategy.sharding = request.pins.sharding.value();
  strategy.loss_ranks = request.pins.loss_ranks.value();
  strategy.compute_dtype = request.problem.compute_dtype;
  strategy.state = request.problem.state;
  return strategy;
}

std::int64_t rank_tokens(const PlanRequest& request, std::int64_t accumulation) {
  const StepSizes& sizes = request.problem.sizes;
  const std::int64_t ranks = request.pins.ring_ranks();
  // A rank has two pieces at most, of which each is at most a token longer than another.
  const std::int64_t seq = ranks == 1 ? sizes.context : 2 * divide_up(sizes.context, 2 * ranks);
  return sizes.batch / request.pins.data_ranks() / accumulation * seq;
}

std::int64_t whole_rehearsals(std::int64_t layers) {
  constexpr std::int64_t kMaxLayersRehearsed = 4096;
  return std::max<std::int64_t>(kMaxLayersRehearsed / layers, 1);
}

double slack_after(std::int64_t rehearsed, std::int64_t layers) {
  const std::int64_t rounds = std::min<std::int64_t>(rehearsed / whole_rehearsals(layers), 15);
  return rounds == 0 ? 0 : std::exp2(rounds - 11);
}

std::vector<LayerPolicy> smallest_policies(const PlanRequest& request) {
  if (request.pins.layers) return {*request.pins.layers};
  const std::int64_t layers = request.problem.config.layers;
  const std::vector<std::int64_t> everies = input_everies(layers);
  const std::int64_t step = divide_up(layers, kMaxOffloads);
  std::vector<LayerPolicy> smallest;
  // A host that cannot take every input takes as many as it can.
  for (std::int64_t recompute = request.host_budget_bytes > 0 ? 0 : layers;; recompute += step) {
    recompute = std::min(recompute, layers);
    for (const std::int64_t every : everies | std::views::reverse) {
      if (every > std::max<std::int64_t>(recompute, 1)) continue;
      smallest.push_back({.recompute = recompute, .offload = layers - recompute, .input_every = every});
    }
    if (recompute == layers) return smallest;
  }
}

std::vector<std::int64_t> accumulation_choices(const PlanRequest& request) {
  const std::int64_t batch = request.problem.sizes.batch;
  const std::int64_t groups = request.pins.data_ranks();
  const std::optional<std::int64_t>& pin = request.pins.accumulation;
  check(!pin || (*pin >= 1 && batch % *pin == 0), "a batch of {} sequences is not {} equal micro-steps",
        batch, pin.value_or(0));
  const std::int64_t micro_batch = batch / pin.value_or(1);
  check(micro_batch % groups == 0,
        "a batch of {} sequences cannot be divided over {} groups of ranks; a multiple of {} can",
        micro_batch, groups, groups);
  return pin ? std::vector{*pin} : spread_out(divisors_of(batch / groups), kMaxAccumulations);
}

std::vector<LossChunks> loss_chunk_choices(const PlanRequest& request) {
  if (request.pins.loss_chunk_tokens) return {{.tokens = *request.pins.loss_chunk_tokens, .vocab = 0}};
  LossProblem problem = loss_problem(request.problem);
  VocabularyLoss divided;
  const bool divides_vocabulary = request.pins.loss_ranks == LossRanks::vocabulary;
  if (divides_vocabulary) {
    const std::int64_t ranks = request.pins.ranks;
    problem.tokens = rank_tokens(request, 1);
    divided = {.problem = problem,
               .rank_tokens = std::vector(static_cast<std::size_t>(ranks), problem.tokens),
               .slice = {.first = 0, .words = divide_up(problem.vocab, ranks)}};
  }
  std::vector<LossChunks> choices;
  for (const std::int64_t share : {8, 32, 256}) {
    const std::int64_t bytes = request.budget_bytes / share;
    add_new(choices, divides_vocabulary
                         ? LossChunks{.tokens = fit_vocabulary_chunk(divided, request.device, bytes)}
                         : fit_loss_chunks(problem, request.device, bytes));
  }
  return choices;
}

std::vector<LayerCut> layer_cut_choices(const PlanRequest& request) {
  const bool gpu = request.device.kind == DeviceKind::cuda;
  std::vector<LayerCut> choices;
  if (request.pins.mlp_tile_tokens) {
    choices.push_back({*request.pins.mlp_tile_tokens});
  } else {
    const std::int64_t tokens = rank_tokens(request, 1);
    const auto add = [&](std::int64_t tile) { add_new(choices, LayerCut{std::min(tile, tokens)}); };
    // A GPU's products are fastest whole; a CPU's are as fast in tiles.
    if (gpu) {
      for (const std::int64_t tile : {tokens, std::int64_t{32'768}, std::int64_t{8192}}) add(tile);
    }
    for (const std::int64_t tile : {2048, 512, 128}) add(tile);
  }
  // Where memory is that short, it is the attention of a long context that takes the time, and a projection
  // more is little beside it.
  if (gpu) {
    const auto small =
        std::ranges::find_if(choices, [](const LayerCut& cut) { return cut.mlp_tile_tokens <= 8192; });
    const std::int64_t smallest = choices.back().mlp_tile_tokens;
    if (small != choices.end()) add_new(choices, LayerCut{small->mlp_tile_tokens, true});
    add_new(choices, LayerCut{smallest, true});
  }
  return choices;
}

std::vector<bool> optimizer_choices(const PlanRequest& request) {
  const bool has_state = request.problem.optimizer.kind != OptimizerKind::none;
  if (const std::optional<bool>& pin = request.pins.offload_optimizer) {
    check(has_state || !*pin, "the optimizer's state is to be on the host, and there is no optimizer");
    return {*pin};
  }
  if (has_state && request.host_budget_bytes > 0) return {false, true};
  return {false};
}

void check_sizes(const TrainingProblem& problem) {
  check(problem.config.layers <= kMaxPlannedLayers,
        "a model of {} layers is too deep to plan; at most {} are accepted",
        format_count(problem.config.layers), format_count(kMaxPlannedLayers));
  check_plannable(problem.sizes);
}

SearchSpace search_space(const PlanRequest& request) {
  check_sizes(request.problem);
  SearchSpace space{.policies = {},
                    .accumulations = accumulation_choices(request),
                    .loss_chunks = loss_chunk_choices(request),
                    .layer_cuts = layer_cut_choices(request),
                    .optimizer_offloads = optimizer_choices(request)};
  const auto cuts = std::ssize(space.accumulations) * std::ssize(space.loss_chunks) *
                    std::ssize(space.layer_cuts) * std::ssize(space.optimizer_offloads);
  const bool offload = request.host_budget_bytes > 0;
  const std::int64_t layers = request.problem.config.layers;
  space.policies = request.pins.layers ? std::vector{*request.pins.layers}
                                       : layer_policies(layers, offload, policy_step(layers, offload, cuts));
  return space;
}

}  // namespace headroom
