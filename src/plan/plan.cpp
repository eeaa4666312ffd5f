#include "headroom/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <ranges>
#include <utility>

#include "headroom/core/bytes.h"
#include "headroom/core/checked.h"
#include "plan/search_space.h"
#include "plan/uniform.h"

namespace headroom {
namespace {

// A lower bound of what a strategy takes.
PlannedStep at_least(const LayerPolicy& policy, const LayerCosts& layers, const LossCosts& loss,
                     const RunCosts& run) {
  PlannedStep step;
  step.arena_bytes = std::max(run.device_bytes + layers.bytes_at_least(policy, loss), run.update_peak_bytes);
  step.host_bytes = run.host_bytes + layers.host_bytes(policy, run.transfer_bytes);
  return step;
}

// Every strategy of a space but for its layers, those that split least first; and what layers cost in them.
class Cuts {
 public:
  Cuts(const PlanRequest& request, const SearchSpace& space, const CostModel& costs, Strategy strategy,
       RankPlan& ranks);

  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(cuts_.size()); }
  [[nodiscard]] double seconds(std::uint32_t cut, const LayerPolicy& policy) const {
    return layers(cut).seconds(policy, cuts_[cut].loss) + runs_[cuts_[cut].run].update_seconds;
  }
  [[nodiscard]] PlannedStep at_least(std::uint32_t cut, const LayerPolicy& policy) const {
    return headroom::at_least(policy, layers(cut), cuts_[cut].loss, runs_[cuts_[cut].run]);
  }
  [[nodiscard]] Strategy strategy(std::uint32_t cut, const LayerPolicy& policy) const {
    Strategy strategy = cuts_[cut].strategy;
    strategy.layers = policy;
    return strategy;
  }

 private:
  struct Cut {
    Strategy strategy;
    std::size_t layers = 0;
    LossCosts loss;
    std::size_t run = 0;
  };
  [[nodiscard]] const LayerCosts& layers(std::uint32_t cut) const { return layers_[cuts_[cut].layers]; }

  std::vector<LayerCosts> layers_;  // [accumulations][layer cuts], with the first way to cut the loss
  std::vector<RunCosts> runs_;      // [places of the optimizer's state]
  std::vector<Cut> cuts_;
};

struct Candidate {
  double seconds;
  std::uint32_t cut;
  std::uint32_t policy;

  // Fastest first; among equals, those that split least.
  auto operator<=>(const Candidate&) const = default;
};

// Calls body(candidate) in ascending order until it returns false. Most often few are asked for, so they are
// sorted as far as they are.
template <class Body>
void for_each_ascending(std::vector<Candidate>& candidates, const Body& body) {
  auto begin = candidates.begin();
  for (std::ptrdiff_t count = 1024; begin != candidates.end(); count *= 8) {
    const auto end = begin + std::min(count, candidates.end() - begin);
    std::nth_element(begin, end - 1, candidates.end());
    std::sort(begin, end);
    for (; begin != end; ++begin) {
      if (!body(*begin)) return;
    }
  }
}

}  // namespace

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

// What a rehearsal of one strategy is for.
struct StepQuestion {
  const PlanRequest& request;
  const Strategy& strategy;
  const CostModel& costs;
  RankPlan& ranks;
  std::int64_t most_bytes;            // more than this need not be packed
  std::optional<int> only_rank = {};  // in place of a rank of each class
  bool timed = true;                  // false: seconds are without attention over ranks
};

// One rank, rehearsed, and packed if the blocks alone would fit.
PlannedStep rehearsed_rank(const StepQuestion& of, int rank, Layout* layout) {
  const Strategy& strategy = of.strategy;
  const TrainingProblem problem = micro_step_of(of.request, strategy);
  TrainingRehearsal rehearsal = rehearse_memory(problem, strategy, of.request.device, rank);
  const RankedAttention attention = of.timed ? of.ranks.attention(problem, strategy) : RankedAttention{};
  const RecordSeconds seconds(of.costs, problem.config, rehearsal, attention);
  PlannedStep step{.strategy = strategy,
                   .live_peak_bytes = std::as_const(rehearsal.ledger).usage(Space::device).peak_bytes,
                   .seconds = static_cast<double>(strategy.accumulation) * seconds.of(rehearsal.micro_step) +
                              seconds.of(rehearsal.update),
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

// The rank that takes most of all, unless one before it is over `most_bytes` already.
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
  for (const RankClass& like : ranks.classes) {
    Layout other;
    PlannedStep step = rehearsed_rank(of, like.first, &other);
    const RankSizes sizes =
        decoder.rank_sizes({.rank = like.first, .count = static_cast<int>(of.strategy.ranks())});
    shares.push_back({.first_rank = like.first,
                      .ranks = like.count,
                      .tokens = sizes.batch * sizes.seq,
                      .arena_bytes = step.arena_bytes});
    slowest = std::max(slowest, step.seconds);
    if (shares.size() > 1 && budgeted_bytes(of.request, step) <= budgeted_bytes(of.request, most)) continue;
    most = std::move(step);
    if (layout != nullptr) *layout = std::move(other);
    if (most.live_peak_bytes > of.most_bytes) break;
  }
  most.seconds = slowest;
  for (const std::int32_t like : ranks.of_rank) {
    if (static_cast<std::size_t>(like) >= shares.size()) break;
    most.rank_arena_bytes.push_back(shares[static_cast<std::size_t>(like)].arena_bytes);
  }
  most.rank_shares = std::move(shares);
  return most;
}

}  // namespace

PlannedStep plan_step(const PlanRequest& request, const Strategy& strategy, const CostModel& costs,
                      Layout* layout) {
  RankPlan ranks(costs);
  return rehearsed_step({request, strategy, costs, ranks, std::numeric_limits<std::int64_t>::max()}, layout);
}

namespace {

// A rank has no more tokens than its share of a micro-step's batch.
void set(Strategy& strategy, const LossChunks& chunks, const PlanRequest& request) {
  strategy.loss_chunk_tokens = std::min(chunks.tokens, rank_tokens(request, strategy.accumulation));
  strategy.loss_chunk_vocab = chunks.vocab;
}
void set(Strategy& strategy, const LayerCut& cut, const PlanRequest& request) {
  strategy.mlp_tile_tokens = std::min(cut.mlp_tile_tokens, rank_tokens(request, strategy.accumulation));
  strategy.projections_again = cut.projections_again;
}

Cuts::Cuts(const PlanRequest& request, const SearchSpace& space, const CostModel& costs, Strategy strategy,
           RankPlan& ranks) {
  set(strategy, space.loss_chunks.front(), request);
  for (const bool away : space.optimizer_offloads) {
    strategy.offload_optimizer = away;
    runs_.push_back(run_costs(request, strategy, costs));
  }
  for (const std::int64_t accumulation : space.accumulations) {
    strategy.accumulation = accumulation;
    std::vector<LossCosts> losses;
    for (const LossChunks& chunks : space.loss_chunks) {
      set(strategy, chunks, request);
      losses.push_back(loss_costs(request, strategy, costs));
    }
    for (const LayerCut& cut : space.layer_cuts) {
      set(strategy, cut, request);
      set(strategy, space.loss_chunks.front(), request);
      layers_.emplace_back(request, strategy, costs, space.policies,
                           ranks.attention(micro_step_of(request, strategy), strategy));
      for (std::size_t i = 0; i < losses.size(); ++i) {
        set(strategy, space.loss_chunks[i], request);
        for (std::size_t j = 0; j < runs_.size(); ++j) {
          strategy.offload_optimizer = space.optimizer_offloads[j];
          cuts_.push_back({strategy, layers_.size() - 1, losses[i] - losses.front(), j});
        }
      }
    }
  }
}

}  // namespace

namespace {

// The strategies of one way to divide a step over ranks.
class DivisionSearch {
 public:
  // The request has its ring and its sharding pinned. All but it have to outlive this.
  DivisionSearch(PlanRequest request, std::int64_t head_group, const CostModel& costs, RankPlan& ranks)
      : request_(std::move(request)),
        common_(common_strategy(request_, head_group)),
        costs_(&costs),
        ranks_(&ranks),
        space_(search_space(request_)),
        cuts_(request_, space_, costs, common_, ranks) {}

  // What strategies take by their bounds.
  struct Bound {
    std::optional<double> seconds;                // of the fastest that fits
    std::pair<std::int64_t, std::int64_t> least;  // bytes over, bytes; of the one that is least over

    // What fits is before what does not.
    [[nodiscard]] bool is_before(const Bound& other) const {
      if (seconds && other.seconds) return *seconds < *other.seconds;
      return seconds || other.seconds ? seconds.has_value() : least < other.least;
    }
  };
  [[nodiscard]] Bound bound() const;
  [[nodiscard]] RankDivision division(const std::optional<double>& seconds) const {
    return {common_.ring_ranks, common_.head_group, common_.sharding, seconds};
  }
  // The best of the strategies, rehearsed.
  [[nodiscard]] Plan plan();

 private:
  PlanRequest request_;
  Strategy common_;
  const CostModel* costs_;
  RankPlan* ranks_;
  SearchSpace space_;
  Cuts cuts_;
};

DivisionSearch::Bound DivisionSearch::bound() const {
  Bound bound{.seconds = {}, .least = {std::numeric_limits<std::int64_t>::max(), 0}};
  for (std::uint32_t cut = 0; cut < cuts_.count(); ++cut) {
    for (const LayerPolicy& policy : space_.policies) {
      const double seconds = cuts_.seconds(cut, policy);
      if (bound.seconds && seconds >= *bound.seconds) continue;
      const PlannedStep step = cuts_.at_least(cut, policy);
      const std::pair bytes{bytes_over(request_, step), budgeted_bytes(request_, step)};
      if (bytes.first == 0) bound.seconds = seconds;
      bound.least = std::min(bound.least, bytes);
    }
  }
  return bound;
}

Plan DivisionSearch::plan() {
  std::vector<Candidate> candidates;
  candidates.reserve(cuts_.count() * space_.policies.size());
  for (std::uint32_t cut = 0; cut < cuts_.count(); ++cut) {
    for (std::uint32_t policy = 0; policy < space_.policies.size(); ++policy) {
      candidates.push_back({cuts_.seconds(cut, space_.policies[policy]), cut, policy});
    }
  }

  Plan plan;
  plan.candidates = std::ssize(candidates);
  std::optional<Candidate> smallest;
  std::pair<std::int64_t, std::int64_t> least;  // bytes over, bytes
  const auto strategy_of = [&](const Candidate& candidate) {
    return cuts_.strategy(candidate.cut, space_.policies[candidate.policy]);
  };
  // Bounds are near what strategies take, so that almost always the first that may fit does. Where many do
  // not, those that would barely fit are passed over.
  for_each_ascending(candidates, [&](const Candidate& candidate) {
    PlannedStep bound = cuts_.at_least(candidate.cut, space_.policies[candidate.policy]);
    const std::pair bytes{bytes_over(request_, bound), budgeted_bytes(request_, bound)};
    if (!smallest || bytes < least) {
      least = bytes;
      smallest = candidate;
    }
    const double slack = slack_after(plan.rehearsed, request_.problem.config.layers);
    for (std::int64_t* part : {&bound.arena_bytes, &bound.host_bytes})
      *part += static_cast<std::int64_t>(slack * static_cast<double>(*part));
    if (!fits(request_, bound)) return true;
    ++plan.rehearsed;
    plan.step = rehearsed_step({request_, strategy_of(candidate), *costs_, *ranks_, request_.budget_bytes},
                               &plan.layout);
    plan.fits = fits(request_, plan.step);
    return !plan.fits;
  });
  if (plan.fits) return plan;
  ++plan.rehearsed;
  plan.step = plan_step(request_, strategy_of(smallest.value_or(Candidate{})), *costs_, &plan.layout);
  plan.fits = fits(request_, plan.step);
  return plan;
}

// The best over the divisions, with heads divided in the groups that are fastest for each ring, or in none.
Plan search(const PlanRequest& request, const CostModel& costs, bool divide_heads, RankPlan& ranks) {
  struct Compared {
    DivisionSearch search;
    DivisionSearch::Bound bound{};
  };
  std::map<std::int64_t, std::int64_t> groups;  // of rings
  std::vector<Compared> compared;
  for (PlanRequest& division : division_choices(request)) {
    const auto [group, is_new] = groups.try_emplace(division.pins.ring_ranks(), 1);
    if (is_new && divide_heads) group->second = fastest_head_group(division, costs);
    compared.push_back({DivisionSearch(std::move(division), group->second, costs, ranks)});
  }
  if (compared.size() == 1) return compared.front().search.plan();
  for (Compared& one : compared) one.bound = one.search.bound();
  std::ranges::stable_sort(
      compared, [](const Compared& a, const Compared& b) { return a.bound.is_before(b.bound); });
  // No plan of a division is faster than its bound, so that almost always the first one is the fastest. Where
  // nothing fits, the first is the one that is least over.
  Plan best = compared.front().search.plan();
  std::size_t chosen = 0;
  for (std::size_t i = 1; i < compared.size() && compared[i].bound.seconds; ++i) {
    if (best.fits && *compared[i].bound.seconds >= best.step.seconds) break;
    Plan plan = compared[i].search.plan();
    const std::pair cost{bytes_over(request, plan.step), plan.step.seconds};
    if (cost >= std::pair{bytes_over(request, best.step), best.step.seconds}) continue;
    best = std::move(plan);
    chosen = i;
  }
  std::rotate(compared.begin(), compared.begin() + static_cast<std::ptrdiff_t>(chosen),
              compared.begin() + static_cast<std::ptrdiff_t>(chosen) + 1);
  for (const Compared& one : compared) best.divisions.push_back(one.search.division(one.bound.seconds));
  return best;
}

}  // namespace

Plan make_plan(const PlanRequest& request, const CostModel& costs) {
  check_sizes(request.problem);
  RankPlan ranks(costs);
  Plan plan = search(request, costs, true, ranks);
  if (plan.fits || plan.step.strategy.head_group == 1) return plan;
  // Heads that are divided hold Q, K, V and O twice; a ring takes less.
  return search(request, costs, false, ranks);
}

TrainingFit fit_training(PlanRequest request, const CostModel& costs) {
  TrainingProblem& problem = request.problem;
  validate(problem);
  problem.sizes.batch = checked_multiply(problem.sizes.batch, problem.accumulation);
  request.pins.accumulation = problem.accumulation;
  Plan plan = make_plan(request, costs);
  return {.strategy = plan.step.strategy,
          .layout = std::move(plan.layout),
          .needed_bytes = budgeted_bytes(request, plan.step),
          .fits = plan.fits,
          .divisions = std::move(plan.divisions)};
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

// The strategies that take least, at one context after another.
class LeanStrategies {
 public:
  LeanStrategies(const PlanRequest& request, const CostModel& costs)
      : request_(least_division(request)),
        costs_(costs),
        policies_(smallest_policies(request)),
        strategy_(common_strategy(request_, 1)),
        ranks_(costs) {
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
    set(strategy_, loss_chunk_choices(request_).back(), request_);
    set(strategy_, layer_cut_choices(request_).back(), request_);
    const LayerCosts layers(request_, strategy_, costs_, policies_, {});  // bytes alone count
    const std::vector<bool> aways = optimizer_choices(request_);
    for (const LayerPolicy& policy : policies_) {
      for (std::size_t i = aways.size(); i-- > 0;) {
        strategy_.layers = policy;
        strategy_.offload_optimizer = aways[i];
        if (headroom::fits(request_, at_least(policy, layers, {}, runs_[i])) && holds(strategy_)) return true;
      }
    }
    return false;
  }

  PlanRequest request_;
  const CostModel& costs_;
  std::vector<LayerPolicy> policies_;
  Strategy strategy_;
  std::vector<RunCosts> runs_;  // as optimizer_choices has them
  RankPlan ranks_;
};

}  // namespace

std::int64_t largest_context(const PlanRequest& request, const CostModel& costs, std::int64_t step) {
  check_sizes(request.problem);
  LeanStrategies lean(request, costs);
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
    return LeanStrategies(over, costs).fits(over.problem.sizes.context);
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
  RankPlan ranks(costs);
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

namespace {

constexpr StagePath kEmbedding{{StageKind::forward}, {StageKind::embedding}};
constexpr StagePath kFirstLayer{{StageKind::forward}, {StageKind::layer, 0}};
constexpr StagePath kForward{{StageKind::forward}};
constexpr StagePath kLoss{{StageKind::loss}};
constexpr StagePath kBackward{{StageKind::backward}};

}  // namespace

std::string_view name(StepStage stage) {
  switch (stage) {
    case StepStage::parameters: return "parameters";
    case StepStage::embedding: return "after embedding";
    case StepStage::first_layer: return "after the first layer";
    case StepStage::layers: return "after all layers";
    case StepStage::loss: return "loss";
    case StepStage::backward: return "backward";
    case StepStage::optimizer: return "optimizer step";
  }
  return {};
}

std::vector<StepStageUsage> step_stages(const Ledger& ledger) {
  struct Line {
    StepStage stage;
    Phase phase;
    StagePath path;
  };
  const std::array lines = {Line{StepStage::parameters, Phase::load, {}},
                            Line{StepStage::embedding, Phase::micro_step, kEmbedding},
                            Line{StepStage::first_layer, Phase::micro_step, kFirstLayer},
                            Line{StepStage::layers, Phase::micro_step, kForward},
                            Line{StepStage::loss, Phase::micro_step, kLoss},
                            Line{StepStage::backward, Phase::micro_step, kBackward},
                            Line{StepStage::optimizer, Phase::update, {}}};
  const std::vector<StageUsage> all = usage_by_stage(ledger, Space::device);
  std::vector<StepStageUsage> rows;
  for (const Line& line : lines) {
    const auto found = std::ranges::find_if(
        all, [&](const StageUsage& row) { return row.phase == line.phase && row.stage == line.path; });
    if (found == all.end()) continue;
    rows.push_back({line.stage, found->live_bytes, found->peak_bytes, found->at_peak});
  }
  return rows;
}

std::vector<StateBytes> state_bytes(const Ledger& ledger) {
  std::vector<StateBytes> rows;
  const auto load = ledger.find_phase(Phase::load);
  if (!load) return rows;
  for (const Event& event : ledger.phases()[*load].events) {
    if (event.kind != EventKind::allocate || event.lifetime != Lifetime::run) continue;
    if (event.category == Category::staging) continue;
    const std::string_view tensor = ledger.text(event.name);
    auto row = std::ranges::find(rows, tensor, &StateBytes::tensor);
    if (row == rows.end()) row = rows.insert(row, {.tensor = std::string(tensor), .space = event.space});
    row->bytes += event.bytes;
  }
  return rows;
}

std::optional<StepStage> step_stage_of(Phase phase, const StagePath& path) {
  if (phase == Phase::update) return StepStage::optimizer;
  if (path.inside(kEmbedding)) return StepStage::embedding;
  if (path.inside(kFirstLayer)) return StepStage::first_layer;
  if (path.inside(kForward)) return StepStage::layers;
  if (path.inside(kLoss)) return StepStage::loss;
  if (path.inside(kBackward)) return StepStage::backward;
  return std::nullopt;
}

}  // namespace headroom
