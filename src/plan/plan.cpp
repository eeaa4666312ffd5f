#include "headroom/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ranges>
#include <utility>

#include "headroom/core/bytes.h"
#include "plan/uniform.h"

namespace headroom {
namespace {

// Counts of keep all, keep attention, recompute and offload that add up to the layers.
std::vector<LayerPolicy> layer_policies(std::int64_t layers, bool offload) {
  std::vector<std::int64_t> everies = {1};
  const auto root = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(layers))));
  for (const std::int64_t every : {std::int64_t{2}, root}) {
    if (every > everies.back() && every <= layers) everies.push_back(every);
  }
  std::vector<LayerPolicy> policies;
  for (std::int64_t all = layers; all >= 0; --all) {
    for (std::int64_t attention = layers - all; attention >= 0; --attention) {
      const std::int64_t rest = layers - all - attention;
      for (std::int64_t away = 0; away <= (offload ? rest : 0); ++away) {
        const std::int64_t recompute = rest - away;
        for (const std::int64_t every : everies) {
          if (every > std::max<std::int64_t>(recompute, 1)) break;
          policies.push_back({.keep_all = all,
                              .keep_attention = attention,
                              .recompute = recompute,
                              .offload = away,
                              .input_every = every});
        }
      }
    }
  }
  return policies;
}

// What takes least memory for its kind.
std::vector<LayerPolicy> smallest_policies(const SearchSpace& space, std::int64_t layers) {
  std::vector<LayerPolicy> smallest;
  for (const LayerPolicy& policy : space.policies) {
    if (policy.recompute == layers || policy.offload == layers) smallest.push_back(policy);
  }
  return smallest.empty() ? space.policies : smallest;
}

// A strategy but for its layers, and what layers cost in it.
struct Cut {
  Strategy strategy;
  LayerCosts layers;
  RunCosts run;

  [[nodiscard]] double seconds(const LayerPolicy& policy) const {
    return layers.seconds(policy) + run.update_seconds;
  }
  // No less than what it takes.
  [[nodiscard]] PlannedStep at_least(const LayerPolicy& policy) const {
    PlannedStep step;
    step.arena_bytes = std::max(run.device_bytes + layers.live_bytes_at_least(policy), run.update_peak_bytes);
    step.host_bytes = run.host_bytes + layers.host_bytes(policy);
    return step;
  }
};

struct Candidate {
  double seconds;
  std::uint32_t cut;
  std::uint32_t policy;
};

}  // namespace

SearchSpace search_space(const PlanRequest& request) {
  const TrainingProblem& problem = request.problem;
  const StrategyPins& pins = request.pins;
  SearchSpace space;
  const bool offload = request.host_budget_bytes > 0;
  space.policies = pins.layers ? std::vector{*pins.layers} : layer_policies(problem.config.layers, offload);
  if (pins.accumulation) {
    check(*pins.accumulation >= 1 && problem.sizes.batch % *pins.accumulation == 0,
          "a batch of {} sequences is not {} equal micro-steps", problem.sizes.batch, *pins.accumulation);
    space.accumulations = {*pins.accumulation};
  } else {
    for (std::int64_t parts = 1; parts <= problem.sizes.batch; ++parts) {
      if (problem.sizes.batch % parts == 0) space.accumulations.push_back(parts);
    }
  }
  for (const std::int64_t share : {8, 32, 256}) {
    LossChunks chunks =
        fit_loss_chunks(loss_problem(problem), rehearsed_on(request.device), request.budget_bytes / share);
    if (pins.loss_chunk_tokens) chunks = {.tokens = *pins.loss_chunk_tokens, .vocab = 0};
    if (std::ranges::find(space.loss_chunks, chunks) == space.loss_chunks.end())
      space.loss_chunks.push_back(chunks);
  }
  const std::int64_t tokens = problem.sizes.batch * problem.sizes.seq;
  for (const std::int64_t tile : {2048, 512, 128}) {
    const std::int64_t tokens_of_tile = pins.mlp_tile_tokens.value_or(std::min(tile, tokens));
    if (std::ranges::find(space.mlp_tiles, tokens_of_tile) == space.mlp_tiles.end())
      space.mlp_tiles.push_back(tokens_of_tile);
  }
  const bool has_state = problem.optimizer.kind != OptimizerKind::none;
  if (pins.offload_optimizer) {
    check(has_state || !*pins.offload_optimizer,
          "the optimizer's state is to be on the host, and there is no optimizer");
    space.optimizer_offloads = {*pins.offload_optimizer};
  } else {
    space.optimizer_offloads = {false};
    if (offload && has_state) space.optimizer_offloads.push_back(true);
  }
  return space;
}

DeviceDescription rehearsed_on(const DeviceDescription& device) {
  if (device.kind == DeviceKind::cpu) return device;
  DeviceDescription core = device;
  core.kind = DeviceKind::cpu;
  core.simd = SimdLevel::avx512;
  core.cores = 1;
  return core;
}

bool one_memory(const PlanRequest& request) {
  return request.device.kind == DeviceKind::cpu && request.host_budget_bytes == 0;
}

std::int64_t budgeted_bytes(const PlanRequest& request, const PlannedStep& step) {
  return step.arena_bytes + (one_memory(request) ? step.host_bytes : 0);
}

std::int64_t bytes_over(const PlanRequest& request, const PlannedStep& step) {
  const auto over = [](std::int64_t bytes, std::int64_t budget) {
    return std::max<std::int64_t>(bytes - budget, 0);
  };
  const bool host_is_bounded = request.host_budget_bytes > 0;
  return over(budgeted_bytes(request, step), request.budget_bytes) +
         (host_is_bounded ? over(step.host_bytes, request.host_budget_bytes) : 0);
}

namespace {

// Rehearsed, and packed if the blocks alone would fit.
PlannedStep rehearsed_step(const PlanRequest& request, const Strategy& strategy, const CostModel& costs,
                           std::int64_t most_bytes, Layout* layout) {
  TrainingRehearsal rehearsal =
      rehearse(micro_step_of(request, strategy), strategy, rehearsed_on(request.device));
  PlannedStep step{
      .strategy = strategy,
      .live_peak_bytes = std::as_const(rehearsal.ledger).usage(Space::device).peak_bytes,
      .seconds = static_cast<double>(strategy.accumulation) * costs.seconds(rehearsal.micro_step) +
                 costs.seconds(rehearsal.update)};
  step.arena_bytes = step.live_peak_bytes;
  if (step.live_peak_bytes > most_bytes) return step;
  Layout packed = make_layout(std::move(rehearsal.ledger));
  step.arena_bytes = packed.reserved(Space::device);
  step.host_bytes = packed.reserved(Space::host);
  if (layout != nullptr) *layout = std::move(packed);
  return step;
}

}  // namespace

PlannedStep plan_step(const PlanRequest& request, const Strategy& strategy, const CostModel& costs,
                      Layout* layout) {
  return rehearsed_step(request, strategy, costs, std::numeric_limits<std::int64_t>::max(), layout);
}

namespace {

// Every strategy of the space but for its layers, those that split least first.
std::vector<Cut> make_cuts(const PlanRequest& request, const SearchSpace& space, const CostModel& costs) {
  const bool offload =
      std::ranges::any_of(space.policies, [](const LayerPolicy& p) { return p.offload > 0; });
  std::vector<Cut> cuts;
  for (const std::int64_t accumulation : space.accumulations) {
    Strategy strategy{
        .layers = {}, .accumulation = accumulation, .compute_dtype = request.problem.compute_dtype};
    const auto with = [&](const LossChunks& chunks) {
      strategy.loss_chunk_tokens = chunks.tokens;
      strategy.loss_chunk_vocab = chunks.vocab;
      return strategy;
    };
    std::vector<std::pair<bool, RunCosts>> runs;
    for (const bool away : space.optimizer_offloads) {
      Strategy run = with(space.loss_chunks.front());
      run.offload_optimizer = away;
      runs.emplace_back(away, run_costs(request, run, costs));
    }
    for (const std::int64_t tile : space.mlp_tiles) {
      strategy.mlp_tile_tokens = tile;
      const Strategy first = with(space.loss_chunks.front());
      const LayerCosts layers(request, first, costs, offload);
      for (const LossChunks& chunks : space.loss_chunks) {
        const LayerCosts with_loss = layers.with_loss(request, first, with(chunks), costs);
        for (const auto& [away, run] : runs) {
          cuts.push_back({with(chunks), with_loss, run});
          cuts.back().strategy.offload_optimizer = away;
        }
      }
    }
  }
  return cuts;
}

}  // namespace

Plan make_plan(const PlanRequest& request, const CostModel& costs) {
  const SearchSpace space = search_space(request);
  const std::vector<Cut> cuts = make_cuts(request, space, costs);
  // Fastest first; among equals, those that split least.
  std::vector<Candidate> candidates;
  candidates.reserve(cuts.size() * space.policies.size());
  for (std::uint32_t cut = 0; cut < cuts.size(); ++cut) {
    for (std::uint32_t policy = 0; policy < space.policies.size(); ++policy) {
      candidates.push_back({cuts[cut].seconds(space.policies[policy]), cut, policy});
    }
  }
  std::ranges::stable_sort(candidates, {}, &Candidate::seconds);

  Plan plan;
  plan.candidates = static_cast<std::int64_t>(candidates.size());
  const Candidate* smallest = nullptr;
  std::pair<std::int64_t, std::int64_t> least;  // bytes over, bytes
  const auto strategy_of = [&](const Candidate& candidate) {
    Strategy strategy = cuts[candidate.cut].strategy;
    strategy.layers = space.policies[candidate.policy];
    return strategy;
  };
  for (const Candidate& candidate : candidates) {
    const PlannedStep bound = cuts[candidate.cut].at_least(space.policies[candidate.policy]);
    const std::pair bytes{bytes_over(request, bound), budgeted_bytes(request, bound)};
    if (smallest == nullptr || bytes < least) {
      least = bytes;
      smallest = &candidate;
    }
    if (!fits(request, bound)) continue;
    plan.step = rehearsed_step(request, strategy_of(candidate), costs, request.budget_bytes, &plan.layout);
    plan.fits = fits(request, plan.step);
    if (plan.fits) return plan;
  }
  plan.step = plan_step(request, strategy_of(*smallest), costs, &plan.layout);
  return plan;
}

TrainingFit fit_training(const TrainingProblem& problem, const DeviceDescription& device,
                         std::int64_t budget_bytes, const CostModel& costs) {
  validate(problem);
  PlanRequest request{
      .problem = problem, .device = device, .budget_bytes = budget_bytes, .host_budget_bytes = 0, .pins = {}};
  request.problem.sizes.batch *= problem.accumulation;
  request.pins.accumulation = problem.accumulation;
  Plan plan = make_plan(request, costs);
  return {.strategy = plan.step.strategy,
          .layout = std::move(plan.layout),
          .needed_bytes = plan.step.arena_bytes + plan.step.host_bytes,
          .fits = plan.fits};
}

std::int64_t largest_context(PlanRequest request, const CostModel& costs, std::int64_t step) {
  const auto fits_at = [&](std::int64_t units) {
    request.problem.sizes.seq = units * step;
    const SearchSpace space = search_space(request);
    Strategy strategy{.layers = {},
                      .loss_chunk_tokens = space.loss_chunks.back().tokens,
                      .loss_chunk_vocab = space.loss_chunks.back().vocab,
                      .mlp_tile_tokens = space.mlp_tiles.back(),
                      .accumulation = space.accumulations.back(),
                      .compute_dtype = request.problem.compute_dtype};
    // What takes least of the device first.
    const std::vector<LayerPolicy> policies = smallest_policies(space, request.problem.config.layers);
    for (const LayerPolicy& policy : policies | std::views::reverse) {
      strategy.layers = policy;
      for (const bool away : space.optimizer_offloads | std::views::reverse) {
        strategy.offload_optimizer = away;
        const PlannedStep planned = rehearsed_step(request, strategy, costs, request.budget_bytes, nullptr);
        if (fits(request, planned)) return true;
        // With the optimizer's state on it the device would hold more.
        if (budgeted_bytes(request, planned) > request.budget_bytes) break;
      }
    }
    return false;
  };
  if (!fits_at(1)) return 0;
  std::int64_t low = 1;
  std::int64_t high = 2;
  while (high * step <= std::numeric_limits<std::int32_t>::max() && fits_at(high)) {
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits_at(middle) ? low : high) = middle;
  }
  return low * step;
}

std::vector<Change> what_if(const PlanRequest& request, const Plan& plan, const CostModel& costs) {
  std::vector<Change> changes;
  const auto consider = [&](std::string what, const PlanRequest& changed, const Strategy& strategy) {
    if (changed.problem.sizes == request.problem.sizes && strategy == plan.step.strategy) return;
    const PlannedStep step = plan_step(changed, strategy, costs);
    const std::int64_t saved = budgeted_bytes(request, plan.step) - budgeted_bytes(request, step);
    if (saved <= 0) return;
    changes.push_back({.what = std::move(what),
                       .saved_bytes = saved,
                       .added_seconds = step.seconds - plan.step.seconds,
                       .fits = fits(request, step)});
  };
  const std::int64_t layers = request.problem.config.layers;
  const Strategy& now = plan.step.strategy;
  Strategy strategy = now;
  strategy.layers = {.keep_attention = layers};
  consider("every layer keeps attention, recomputes the rest", request, strategy);
  strategy.layers = {.recompute = layers};
  consider("every layer is recomputed from its input", request, strategy);
  const auto root = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(layers))));
  if (root > 1) {
    strategy.layers = {.recompute = layers, .input_every = root};
    consider(fmt::format("layers are recomputed from every {}th input", root), request, strategy);
  }
  if (!one_memory(request)) {
    strategy.layers = {.offload = layers};
    consider("layer inputs move to the host", request, strategy);
    if (request.problem.optimizer.kind != OptimizerKind::none) {
      strategy = now;
      strategy.offload_optimizer = true;
      consider("the optimizer's state moves to the host", request, strategy);
    }
  }
  strategy = now;
  strategy.loss_chunk_tokens = std::max<std::int64_t>(now.loss_chunk_tokens / 4, 96);
  consider(fmt::format("loss {} tokens at a time", format_count(strategy.loss_chunk_tokens)), request,
           strategy);
  strategy = now;
  strategy.mlp_tile_tokens = std::max<std::int64_t>(now.mlp_tile_tokens / 4, 128);
  consider(fmt::format("MLP {} tokens at a time", format_count(strategy.mlp_tile_tokens)), request, strategy);
  if (request.problem.sizes.batch % (2 * now.accumulation) == 0) {
    strategy = now;
    strategy.accumulation = 2 * now.accumulation;
    consider(fmt::format("the batch in {} micro-steps", strategy.accumulation), request, strategy);
  }
  if (request.problem.compute_dtype == DType::f32) {
    PlanRequest half = request;
    half.problem.compute_dtype = DType::bf16;
    strategy = now;
    strategy.compute_dtype = DType::bf16;
    consider("bf16 instead of f32", half, strategy);
  }
  if (request.problem.sizes.seq > 1) {
    PlanRequest shorter = request;
    shorter.problem.sizes.seq /= 2;
    consider(fmt::format("half the context, {} tokens", format_count(shorter.problem.sizes.seq)), shorter,
             now);
  }
  std::ranges::stable_sort(changes, [](const Change& a, const Change& b) {
    const auto price = [](const Change& c) {
      return std::max(c.added_seconds, 0.0) / static_cast<double>(c.saved_bytes);
    };
    return price(a) < price(b);
  });
  return changes;
}

std::vector<StageUsage> step_stages(const Ledger& ledger) {
  struct Line {
    std::string_view phase, stage, name;
  };
  constexpr std::array kLines = {Line{"load", "", "parameters"},
                                 Line{"micro-step", "forward/embedding", "after embedding"},
                                 Line{"micro-step", "forward/layer 0", "after the first layer"},
                                 Line{"micro-step", "forward", "after all layers"},
                                 Line{"micro-step", "loss", "loss"},
                                 Line{"micro-step", "backward", "backward"},
                                 Line{"update", "", "optimizer step"}};
  const std::vector<StageUsage> all = usage_by_stage(ledger, Space::device);
  std::vector<StageUsage> rows;
  for (const Line& line : kLines) {
    const auto found = std::ranges::find_if(
        all, [&](const StageUsage& row) { return row.phase == line.phase && row.stage == line.stage; });
    if (found == all.end()) continue;
    rows.push_back(*found);
    rows.back().stage = line.name;
  }
  return rows;
}

}  // namespace headroom
