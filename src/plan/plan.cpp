#include "headroom/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ranges>
#include <utility>

#include "headroom/core/bytes.h"
#include "plan/rehearsed_step.h"
#include "plan/search_space.h"

namespace headroom {

bool one_memory(const PlanRequest& request) {
  return request.device.kind == DeviceKind::cpu && request.host_budget_bytes == 0;
}

std::int64_t budgeted_bytes(const PlanRequest& request, const StepBytes& step) {
  return step.arena_bytes + (one_memory(request) ? step.host_bytes : 0);
}

std::int64_t bytes_over(const PlanRequest& request, const StepBytes& step) {
  const auto over = [](std::int64_t bytes, std::int64_t budget) {
    return std::max<std::int64_t>(bytes - budget, 0);
  };
  const bool host_is_bounded = request.host_budget_bytes > 0;
  return over(budgeted_bytes(request, step), request.budget_bytes) +
         (host_is_bounded ? over(step.host_bytes, request.host_budget_bytes) : 0);
}

namespace {

// One rank, rehearsed, and packed if the blocks alone would fit.
PlannedStep rehearsed_rank(const StepQuestion& of, int rank, Layout* layout) {
  const Strategy& strategy = of.strategy;
  const TrainingProblem problem = micro_step_of(of.request, strategy);
  TrainingRehearsal rehearsal = rehearse_memory(problem, strategy, of.request.device, rank);
  const RankedAttention attention = of.timed ? of.ranks.attention(problem, strategy) : RankedAttention{};
  const RecordSeconds seconds(of.costs, problem.config, rehearsal, attention);
  PlannedStep step{.strategy = strategy,
                   .live_peak_bytes = std::as_const(rehearsal.ledger).usage(Space::device).peak_bytes,
                   .seconds = static_cast<double>(strategy.accumulation) *
                                  seconds.of(Phase::micro_step, rehearsal.micro_step) +
                              seconds.of(Phase::update, rehearsal.update),
                   .traffic = seconds.traffic(strategy.accumulation),
                   .assumed = assumed_kernels(rehearsal)};
  step.arena_bytes = step.live_peak_bytes;
  if (step.live_peak_bytes > of.most_bytes) return step;
  Layout packed = make_layout(std::move(rehearsal.ledger));
  step.arena_bytes = packed.reserved(Space::device);
  step.host_bytes = packed.reserved(Space::host);
  if (layout != nullptr) *layout = std::move(packed);
  return step;
}

}  // namespace

PlannedStep rehearsed_step(const StepQuestion& of, Layout* layout) {
  const TrainingProblem problem = micro_step_of(of.request, of.strategy);
  const RankClasses ranks =
      of.only_rank
          ? RankClasses{.classes = {{.first = *of.only_rank, .count = of.strategy.ranks()}}, .of_rank = {}}
          : of.ranks.classes(problem, of.strategy);
  const Decoder decoder(problem.config, of.strategy, problem.sizes, problem.mask, 0);
  PlannedStep most;
  std::vector<RankShare> shares;
  double slowest = 0;
  for (std::size_t i = 0; i < ranks.classes.size(); ++i) {
    const RankClass& like = ranks.classes[i];
    if (!of.timed && like.outweighed) continue;
    const RankSizes sizes =
        decoder.rank_sizes({.rank = like.first, .count = static_cast<int>(of.strategy.ranks())});
    RankShare& share = shares.emplace_back(
        RankShare{.first_rank = like.first, .ranks = like.count, .tokens = sizes.batch * sizes.seq});
    if (const auto rehearsed = static_cast<std::size_t>(like.rehearsed); rehearsed < i) {
      share.arena_bytes = shares[rehearsed].arena_bytes;
      continue;
    }
    Layout other;
    PlannedStep step = rehearsed_rank(of, like.first, &other);
    share.arena_bytes = step.arena_bytes;
    slowest = std::max(slowest, step.seconds);
    if (shares.size() > 1 && budgeted_bytes(of.request, step) <= budgeted_bytes(of.request, most)) continue;
    most = std::move(step);
    if (layout != nullptr) *layout = std::move(other);
    if (most.live_peak_bytes > of.most_bytes) break;
    if (!of.timed && budgeted_bytes(of.request, most) > of.most_bytes) break;  // no rank makes it fit again
  }
  most.seconds = slowest;
  if (!of.timed) return most;  // some classes were left out
  for (const std::int32_t like : ranks.of_rank) {
    if (static_cast<std::size_t>(like) >= shares.size()) break;
    most.rank_arena_bytes.push_back(shares[static_cast<std::size_t>(like)].arena_bytes);
  }
  most.rank_shares = std::move(shares);
  return most;
}

PlannedStep plan_step(const PlanRequest& request, const Strategy& strategy, const CostModel& costs,
                      Layout* layout) {
  RankPlan ranks(costs, request.device);
  return rehearsed_step({request, strategy, costs, ranks, std::numeric_limits<std::int64_t>::max()}, layout);
}

StepBytes at_least(const LayerPolicy& policy, const LayerCosts& layers, const RunCosts& run,
                   std::int64_t micro_step_bytes) {
  return {.arena_bytes = std::max(run.device_bytes + micro_step_bytes, run.update_peak_bytes),
          .host_bytes = run.host_bytes + layers.host_bytes(policy, run.transfer_bytes)};
}

// A rank has no more tokens than its share of a micro-step's batch. A chunk of a divided vocabulary has those
// of all ranks.
void set_cut(Strategy& strategy, const LossChunks& chunks, const PlanRequest& request) {
  const std::int64_t ranks = strategy.loss_ranks == LossRanks::vocabulary ? strategy.ranks() : 1;
  strategy.loss_chunk_tokens = std::min(chunks.tokens, ranks * rank_tokens(request, strategy.accumulation));
  strategy.loss_chunk_vocab = chunks.vocab;
}
void set_cut(Strategy& strategy, const LayerCut& cut, const PlanRequest& request) {
  strategy.mlp_tile_tokens = std::min(cut.mlp_tile_tokens, rank_tokens(request, strategy.accumulation));
  strategy.projections_again = cut.projections_again;
}

namespace {

// The largest value of low, ..., high - 1 for which fits(value) is true; it is at low, or low is 0, and is
// not at high.
template <class Fits>
std::int64_t bisect(std::int64_t low, std::int64_t high, const Fits& fits) {
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

// The strategies of a division that take least, at one context after another.
class LeanStrategies {
 public:
  LeanStrategies(PlanRequest request, const CostModel& costs, RankPlan& ranks)
      : request_(std::move(request)),
        costs_(costs),
        policies_(smallest_policies(request_)),
        strategy_(common_strategy(request_, 1)),
        ranks_(ranks) {
    strategy_.accumulation = accumulation_choices(request_).back();
    for (const bool away : optimizer_choices(request_)) {
      strategy_.offload_optimizer = away;
      runs_.push_back(run_costs(request_, strategy_, costs));
    }
  }

  // Whether one may fit: it does by its bound.
  [[nodiscard]] bool may_fit(std::int64_t seq) {
    try {
      return any(seq, [](const Strategy&) { return true; });
    } catch (const Error&) {
      return false;  // more bytes than 64 bits count
    }
  }
  // Whether one of the first few whose bound fits does, rehearsed and packed.
  [[nodiscard]] bool fits(std::int64_t seq) {
    constexpr int kMostRehearsed = 8;
    int rehearsed = 0;
    return any(seq, [&](const Strategy& strategy) {
      return rehearsed++ < kMostRehearsed &&
             headroom::fits(request_, rehearsed_step({.request = request_,
                                                      .strategy = strategy,
                                                      .costs = costs_,
                                                      .ranks = ranks_,
                                                      .most_bytes = request_.budget_bytes,
                                                      .timed = false},
                                                     nullptr));
    });
  }

 private:
  // Whether holds(strategy) is true of one whose bound fits, those that take least of the device first.
  template <class Holds>
  bool any(std::int64_t seq, const Holds& holds) {
    request_.problem.sizes.context = seq;
    set_cut(strategy_, loss_chunk_choices(request_).back(), request_);
    set_cut(strategy_, layer_cut_choices(request_).back(), request_);
    const LayerCosts layers(request_, strategy_, costs_, policies_, {});  // bytes alone count
    const std::vector<bool> aways = optimizer_choices(request_);
    for (const LayerPolicy& policy : policies_) {
      for (std::size_t i = aways.size(); i-- > 0;) {
        strategy_.layers = policy;
        strategy_.offload_optimizer = aways[i];
        const StepBytes bound = at_least(policy, layers, runs_[i], layers.bytes_at_least(policy));
        if (headroom::fits(request_, bound) && holds(strategy_)) return true;
      }
    }
    return false;
  }

  PlanRequest request_;
  const CostModel& costs_;
  std::vector<LayerPolicy> policies_;
  Strategy strategy_;
  std::vector<RunCosts> runs_;  // as optimizer_choices has them
  RankPlan& ranks_;
};

// Those of every way in which ranks may divide the loss.
class LeanWays {
 public:
  LeanWays(const PlanRequest& request, const CostModel& costs) : ranks_(costs, request.device) {
    for (PlanRequest& division : least_divisions(request))
      ways_.emplace_back(std::move(division), costs, ranks_);
  }

  [[nodiscard]] bool may_fit(std::int64_t seq) {
    return std::ranges::any_of(ways_, [&](LeanStrategies& way) { return way.may_fit(seq); });
  }
  [[nodiscard]] bool fits(std::int64_t seq) {
    return std::ranges::any_of(ways_, [&](LeanStrategies& way) { return way.fits(seq); });
  }

 private:
  RankPlan ranks_;
  std::vector<LeanStrategies> ways_;
};

}  // namespace

bool run_fits(const PlanRequest& request, const CostModel& costs) {
  check(request.pins.ranks == 1, "run_fits is for one rank, and {} are asked for", request.pins.ranks);
  const PlanRequest division = least_divisions(request).front();
  Strategy strategy = common_strategy(division, 1);
  return std::ranges::any_of(optimizer_choices(division), [&](bool away) {
    strategy.offload_optimizer = away;
    return run_costs(division, strategy, costs).device_bytes <= request.budget_bytes;
  });
}

std::int64_t largest_context(const PlanRequest& request, const CostModel& costs, std::int64_t step) {
  check_sizes(request.problem);
  LeanWays lean(request, costs);
  const std::int64_t most =
      std::min<std::int64_t>(std::numeric_limits<std::int32_t>::max(),
                             std::numeric_limits<std::int64_t>::max() / request.problem.sizes.batch);
  const auto may_fit = [&](std::int64_t units) { return lean.may_fit(units * step); };
  const auto fits = [&](std::int64_t units) { return lean.fits(units * step); };
  // By the bounds, which cost little, from the context at hand upwards or downwards.
  std::int64_t high = std::max<std::int64_t>(request.problem.sizes.context / step, 1);
  std::int64_t low = 0;
  while (high * step <= most && may_fit(high)) {
    low = high;
    high *= 2;
  }
  const std::int64_t bound = bisect(low, high, may_fit);
  // What does not fit by its bound does not fit; what does fits almost always.
  if (bound == 0 || fits(bound)) return bound * step;
  high = bound;
  low = bound - 1;
  for (std::int64_t down = 1; low > 0 && !fits(low); down *= 2) {
    high = low;
    low = std::max<std::int64_t>(low - 2 * down, 0);
  }
  return bisect(low, high, fits) * step;
}

std::optional<std::int64_t> smallest_ranks(const PlanRequest& request, const CostModel& costs,
                                           std::int64_t most) {
  check_sizes(request.problem);
  most = std::min(most, request.problem.sizes.context / 2);  // each of a rank's two pieces has a token
  const auto fits = [&](std::int64_t count) {
    PlanRequest over = request;
    over.pins.ranks = count;
    over.pins.ring.reset();
    return LeanWays(over, costs).fits(over.problem.sizes.context);
  };
  if (fits(1)) return 1;
  std::int64_t low = 1;
  std::int64_t high = 2;
  while (high <= most && !fits(high)) {
    low = high;
    high *= 2;
  }
  if (high > most) {
    if (low == most || most < 2 || !fits(most)) return std::nullopt;
    high = most;
  }
  return bisect(-high, -low, [&](std::int64_t count) { return fits(-count); }) * -1;
}

std::vector<Change> what_if(const PlanRequest& request, const Plan& plan, const CostModel& costs) {
  std::vector<Change> changes;
  RankPlan ranks(costs, request.device);
  // The rank that takes most of the plan: the others differ from it by little, whatever changes.
  const int largest =
      std::ranges::max_element(plan.step.rank_shares, {}, &RankShare::arena_bytes)->first_rank;
  std::int64_t left = whole_rehearsals(request.problem.config.layers);
  const auto consider = [&](std::string what, const PlanRequest& changed, const Strategy& strategy) {
    if (changed.problem.sizes == request.problem.sizes && strategy == plan.step.strategy) return;
    if (left-- <= 0) return;
    // What holds more alive saves nothing, however it is packed.
    const std::int64_t now_bytes = budgeted_bytes(request, plan.step);
    const PlannedStep step = rehearsed_step({changed, strategy, costs, ranks, now_bytes, largest}, nullptr);
    const std::int64_t saved = now_bytes - budgeted_bytes(request, step);
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
    consider(fmt::format("layers are recomputed from every {} input", format_ordinal(root)), request,
             strategy);
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
  consider(fmt::format("loss in chunks of {} tokens", format_count(strategy.loss_chunk_tokens)), request,
           strategy);
  strategy = now;
  strategy.mlp_tile_tokens = std::max<std::int64_t>(now.mlp_tile_tokens / 4, 128);
  consider(fmt::format("MLP in tiles of {} tokens", format_count(strategy.mlp_tile_tokens)), request,
           strategy);
  if (request.device.kind == DeviceKind::cuda) {
    strategy = now;
    strategy.projections_again = true;
    consider("projections are made again after attention's backward", request, strategy);
  }
  if (request.problem.sizes.batch % (2 * now.accumulation * now.data_ranks) == 0) {
    strategy = now;
    strategy.accumulation = 2 * now.accumulation;
    consider(fmt::format("the batch in {} micro-steps", strategy.accumulation), request, strategy);
  }
  const bool bf16_runs = request.device.kind == DeviceKind::cpu || request.device.compute_major >= 8;
  if (request.problem.compute_dtype == DType::f32 && bf16_runs) {
    PlanRequest half = request;
    half.problem.compute_dtype = DType::bf16;
    strategy = now;
    strategy.compute_dtype = DType::bf16;
    consider("bf16 instead of f32", half, strategy);
  }
  if (request.problem.state == StatePrecision::f32 && request.problem.compute_dtype == DType::bf16) {
    PlanRequest narrow = request;
    narrow.problem.state = StatePrecision::bf16;
    strategy = now;
    strategy.state = StatePrecision::bf16;
    consider("--state bf16: bf16 gradients and moments, no master weights", narrow, strategy);
  }
  // Half of it has to have a token for each of a rank's two pieces.
  const std::int64_t least = now.ring_ranks == 1 ? 1 : 2 * now.ring_ranks;
  if (request.problem.sizes.context / 2 >= least) {
    PlanRequest shorter = request;
    shorter.problem.sizes.context /= 2;
    consider(fmt::format("half the context, {} tokens", format_count(shorter.problem.sizes.context)), shorter,
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

}  // namespace headroom
