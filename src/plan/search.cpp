// The fastest strategy that fits, over everything that nobody has decided.
#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "headroom/core/checked.h"
#include "plan/rehearsed_step.h"
#include "plan/search_space.h"

namespace headroom {
namespace {

// Every strategy of a space but for its layers, those that split least first; and what layers cost in them.
class Cuts {
 public:
  Cuts(const PlanRequest& request, const SearchSpace& space, const CostModel& costs, Strategy strategy,
       RankPlan& ranks, CostsOfCuts& known);

  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(cuts_.size()); }
  [[nodiscard]] double seconds(std::uint32_t cut, const LayerPolicy& policy) const {
    return layers(cut).seconds(policy, cuts_[cut].loss) + runs_[cuts_[cut].run].update_seconds;
  }
  [[nodiscard]] StepBytes at_least(std::uint32_t cut, const LayerPolicy& policy) const {
    return at_least(cut, policy, layers(cut).bytes_at_least(policy, cuts_[cut].loss));
  }
  // No more than that, and found sooner.
  [[nodiscard]] StepBytes at_least_in_loss(std::uint32_t cut, const LayerPolicy& policy) const {
    return at_least(cut, policy, layers(cut).bytes_in_loss(policy, cuts_[cut].loss));
  }
  // Whether a cut before this one is the same.
  [[nodiscard]] bool is_repeated(std::uint32_t cut) const { return cuts_[cut].is_repeated; }
  [[nodiscard]] Strategy strategy(std::uint32_t cut, const LayerPolicy& policy) const {
    Strategy strategy = cuts_[cut].strategy;
    strategy.layers = policy;
    return strategy;
  }

 private:
  struct Cut {
    Strategy strategy;
    const LayerCosts* layers = nullptr;  // with the first way to cut the loss
    LossCosts loss;
    std::size_t run = 0;
    bool is_repeated = false;
  };
  [[nodiscard]] const LayerCosts& layers(std::uint32_t cut) const { return *cuts_[cut].layers; }
  [[nodiscard]] StepBytes at_least(std::uint32_t cut, const LayerPolicy& policy,
                                   std::int64_t micro_step_bytes) const {
    return headroom::at_least(policy, layers(cut), runs_[cuts_[cut].run], micro_step_bytes);
  }

  std::vector<RunCosts> runs_;  // [places of the optimizer's state]
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

Cuts::Cuts(const PlanRequest& request, const SearchSpace& space, const CostModel& costs, Strategy strategy,
           RankPlan& ranks, CostsOfCuts& known) {
  set_cut(strategy, space.loss_chunks.front(), request);
  for (const bool away : space.optimizer_offloads) {
    strategy.offload_optimizer = away;
    runs_.push_back(run_costs(request, strategy, costs));
  }
  for (const std::int64_t accumulation : space.accumulations) {
    strategy.accumulation = accumulation;
    std::vector<LossCosts> losses;
    for (const LossChunks& chunks : space.loss_chunks) {
      set_cut(strategy, chunks, request);
      losses.push_back(known.loss(request, strategy));
    }
    for (const LayerCut& cut : space.layer_cuts) {
      set_cut(strategy, cut, request);
      set_cut(strategy, space.loss_chunks.front(), request);
      const LayerCosts& layers = known.layers(request, strategy, space.policies, ranks);
      for (std::size_t i = 0; i < losses.size(); ++i) {
        set_cut(strategy, space.loss_chunks[i], request);
        for (std::size_t j = 0; j < runs_.size(); ++j) {
          strategy.offload_optimizer = space.optimizer_offloads[j];
          const bool is_repeated = std::ranges::find(cuts_, strategy, &Cut::strategy) != cuts_.end();
          cuts_.push_back({strategy, &layers, losses[i] - losses.front(), j, is_repeated});
        }
      }
    }
  }
}

// The strategies of one way to divide a step over ranks.
class DivisionSearch {
 public:
  // The request is one of division_choices(). All but it have to outlive this.
  DivisionSearch(PlanRequest request, std::int64_t head_group, const CostModel& costs, RankPlan& ranks,
                 CostsOfCuts& known)
      : request_(std::move(request)),
        common_(common_strategy(request_, head_group)),
        costs_(&costs),
        ranks_(&ranks),
        space_(search_space(request_)),
        cuts_(request_, space_, costs, common_, ranks, known) {}

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
    return {common_.ring_ranks, common_.head_group, common_.sharding, common_.loss_ranks, seconds};
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
  const auto bytes_of = [&](const StepBytes& step) {
    return std::pair{bytes_over(request_, step), budgeted_bytes(request_, step)};
  };
  for (std::uint32_t cut = 0; cut < cuts_.count(); ++cut) {
    if (cuts_.is_repeated(cut)) continue;
    for (const LayerPolicy& policy : space_.policies) {
      const double seconds = cuts_.seconds(cut, policy);
      if (bound.seconds && seconds >= *bound.seconds) continue;
      // Where the loss alone is over the budget, the bytes count only if nothing fits and they are the least.
      const std::pair in_loss = bytes_of(cuts_.at_least_in_loss(cut, policy));
      if (in_loss.first > 0 && (bound.seconds || in_loss >= bound.least)) continue;
      const std::pair bytes = bytes_of(cuts_.at_least(cut, policy));
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
    StepBytes bound = cuts_.at_least(candidate.cut, space_.policies[candidate.policy]);
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
  CostsOfCuts known(costs);
  for (PlanRequest& division : division_choices(request)) {
    const auto [group, is_new] = groups.try_emplace(division.pins.ring_ranks(), 1);
    if (is_new && divide_heads) group->second = fastest_head_group(division, costs);
    compared.push_back({DivisionSearch(std::move(division), group->second, costs, ranks, known)});
  }
  if (compared.size() == 1) return compared.front().search.plan();
  for (Compared& one : compared) one.bound = one.search.bound();
  std::ranges::stable_sort(compared,
                           [](const Compared& a, const Compared& b) { return a.bound.is_before(b.bound); });
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
  RankPlan ranks(costs, request.device);
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

}  // namespace headroom
