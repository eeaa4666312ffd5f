// What ranks divide where nobody has decided it: the fastest that fits, of all that are possible.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "headroom/core/bytes.h"
#include "headroom/plan.h"
#include "plan/rehearsed_step.h"
#include "plan/search_space.h"

namespace headroom {
namespace {

using testing::HasSubstr;

PlanRequest request_of(std::int64_t batch, std::int64_t ranks) {
  PlanRequest request;
  request.problem.config = find_model("demo");
  request.problem.config.layers = 2;
  request.problem.config.vocab = 1024;
  request.problem.sizes = {.batch = batch, .context = 256};
  request.problem.mask = parse_mask("causal");
  request.device.cores = 2;
  request.budget_bytes = kGiB;
  request.pins.ranks = ranks;
  return request;
}

CostModel costs_of(const PlanRequest& request, const LinkModel& link) {
  CostModel costs(request.device, request.problem.compute_dtype);
  costs.set_rank_link(link);
  return costs;
}

// The plans of every division, pinned.
std::vector<Plan> plan_everything(PlanRequest request, const CostModel& costs) {
  std::vector<Plan> plans;
  for (std::int64_t ring = request.pins.ranks; ring >= 1; --ring) {
    if (request.pins.ranks % ring != 0) continue;
    if (request.problem.sizes.batch % (request.pins.ranks / ring) != 0) continue;
    for (const Sharding sharding : {Sharding::none, Sharding::optimizer, Sharding::full}) {
      for (const LossRanks loss_ranks : {LossRanks::tokens, LossRanks::vocabulary}) {
        request.pins.ring = ring;
        request.pins.sharding = sharding;
        request.pins.loss_ranks = loss_ranks;
        plans.push_back(make_plan(request, costs));
        EXPECT_TRUE(plans.back().divisions.empty());  // nothing was left to choose
      }
    }
  }
  return plans;
}

// The bound of a division in the plain way: what every strategy costs is learned anew, none is passed over.
struct PlainBound {
  RankDivision division;
  std::pair<std::int64_t, std::int64_t> least;  // bytes over, bytes
};

PlainBound plain_bound(const PlanRequest& request, std::int64_t head_group, const CostModel& costs) {
  const SearchSpace space = search_space(request);
  RankPlan ranks(costs, request.device);
  Strategy strategy = common_strategy(request, head_group);
  PlainBound bound{.division = {strategy.ring_ranks, head_group, strategy.sharding, strategy.loss_ranks, {}},
                   .least = {std::numeric_limits<std::int64_t>::max(), 0}};
  std::optional<double>& fastest = bound.division.seconds;
  const RunCosts run = run_costs(request, strategy, costs);
  for (const std::int64_t accumulation : space.accumulations) {
    strategy.accumulation = accumulation;
    for (const LayerCut& cut : space.layer_cuts) {
      set_cut(strategy, cut, request);
      set_cut(strategy, space.loss_chunks.front(), request);
      const LayerCosts layers(request, strategy, costs, space.policies,
                              ranks.attention(micro_step_of(request, strategy), strategy));
      const LossCosts first = loss_costs(request, strategy, costs);
      for (const LossChunks& chunks : space.loss_chunks) {
        set_cut(strategy, chunks, request);
        const LossCosts loss = loss_costs(request, strategy, costs) - first;
        for (const LayerPolicy& policy : space.policies) {
          const double seconds = layers.seconds(policy, loss) + run.update_seconds;
          const StepBytes step = at_least(policy, layers, run, layers.bytes_at_least(policy, loss));
          EXPECT_LE(layers.bytes_in_loss(policy, loss), layers.bytes_at_least(policy, loss));
          const std::pair bytes{bytes_over(request, step), budgeted_bytes(request, step)};
          if (bytes.first == 0) fastest = std::min(fastest.value_or(seconds), seconds);
          bound.least = std::min(bound.least, bytes);
        }
      }
    }
  }
  return bound;
}

// Costs that divisions share, cuts that coincide and strategies that are passed over change no bound, and not
// the order of those that do not fit.
TEST(RankChoice, BoundsAreThoseOfThePlainWay) {
  int fit = 0;
  int unfit = 0;
  for (const char* device : {"", "h200"}) {
    for (const std::int64_t budget : {kGiB, 12 * kMiB, 6 * kMiB, kMiB}) {
      PlanRequest request = request_of(8, 4);
      request.problem.config.layers = 5;
      if (*device != 0) request.device = find_in_catalogue(device).device;
      request.budget_bytes = budget;
      const CostModel costs = costs_of(request, {.latency = Seconds(1e-5), .bytes_per_second = 1e9});
      const std::vector<RankDivision> found = make_plan(request, costs).divisions;
      const std::vector<PlanRequest> requests = division_choices(request);
      ASSERT_EQ(found.size(), requests.size());
      std::vector<PlainBound> plain;
      for (const PlanRequest& one : requests) {
        const auto same = std::ranges::find_if(found, [&](const RankDivision& division) {
          return division.ring_ranks == one.pins.ring && division.sharding == one.pins.sharding &&
                 division.loss_ranks == one.pins.loss_ranks;
        });
        ASSERT_NE(same, found.end());
        plain.push_back(plain_bound(one, same->head_group, costs));
        EXPECT_EQ(plain.back().division.seconds, same->seconds) << device << " " << budget;
        ++(same->seconds ? fit : unfit);
      }
      // The chosen one is first; the others are in the order of their bounds.
      const auto key = [](const RankDivision& division) {
        return std::tuple{division.ring_ranks, division.sharding, division.loss_ranks};
      };
      std::ranges::stable_sort(plain, [](const PlainBound& a, const PlainBound& b) {
        if (a.division.seconds && b.division.seconds) return *a.division.seconds < *b.division.seconds;
        return a.division.seconds || b.division.seconds ? a.division.seconds.has_value() : a.least < b.least;
      });
      std::erase_if(plain, [&](const PlainBound& one) { return key(one.division) == key(found.front()); });
      for (std::size_t i = 0; i < plain.size(); ++i) {
        EXPECT_EQ(key(plain[i].division), key(found[i + 1])) << device << " " << budget << " " << i;
      }
    }
  }
  EXPECT_GT(fit, 0);
  EXPECT_GT(unfit, 0);
}

TEST(RankChoice, IsTheFastestThatFits) {
  const std::array links = {LinkModel{}, LinkModel{.latency = Seconds(1e-5), .bytes_per_second = 1e9},
                            LinkModel{.latency = Seconds(1e-3), .bytes_per_second = 1e7}};
  std::vector<std::int64_t> rings;
  std::vector<Sharding> shardings;
  std::vector<LossRanks> losses;
  int unfit = 0;
  for (const LinkModel& link : links) {
    for (const std::int64_t batch : {1, 4}) {
      PlanRequest request = request_of(batch, 4);
      const CostModel costs = costs_of(request, link);
      for (const std::int64_t budget : {kGiB, 7 * kMiB, 6 * kMiB, 5 * kMiB, 9 * kMiB / 2, kMiB}) {
        request.budget_bytes = budget;
        const std::vector<Plan> all = plan_everything(request, costs);
        const Plan plan = make_plan(request, costs);
        EXPECT_EQ(plan.divisions.size(), all.size());
        double best = std::numeric_limits<double>::infinity();
        for (const Plan& one : all) {
          if (one.fits) best = std::min(best, one.step.seconds);
        }
        ASSERT_EQ(plan.fits, std::isfinite(best)) << budget;
        if (!plan.fits) {
          ++unfit;
          continue;
        }
        EXPECT_NEAR(plan.step.seconds, best, 1e-9 * best);
        const RankDivision& first = plan.divisions.front();
        EXPECT_EQ(first.ring_ranks, plan.step.strategy.ring_ranks);
        EXPECT_EQ(first.sharding, plan.step.strategy.sharding);
        EXPECT_EQ(first.loss_ranks, plan.step.strategy.loss_ranks);
        EXPECT_EQ(first.head_group, plan.step.strategy.head_group);
        rings.push_back(first.ring_ranks);
        shardings.push_back(first.sharding);
        losses.push_back(first.loss_ranks);
      }
    }
  }
  // Which is best depends on the link and the budget.
  EXPECT_GT(unfit, 0);
  EXPECT_NE(std::ranges::min(rings), std::ranges::max(rings));
  EXPECT_NE(std::ranges::min(shardings), std::ranges::max(shardings));
  EXPECT_NE(std::ranges::min(losses), std::ranges::max(losses));
}

TEST(RankChoice, FlagsPinPartsOfIt) {
  PlanRequest request = request_of(4, 4);
  const CostModel costs = costs_of(request, {});
  request.pins.ring = 2;
  for (const RankDivision& one : make_plan(request, costs).divisions) EXPECT_EQ(one.ring_ranks, 2);
  request.pins.ring.reset();
  request.pins.sharding = Sharding::full;
  const Plan plan = make_plan(request, costs);
  EXPECT_EQ(plan.divisions.size(), 6U);  // rings of 4, 2 and 1, with both ways of the loss
  EXPECT_EQ(plan.step.strategy.sharding, Sharding::full);
  request.pins.loss_ranks = LossRanks::vocabulary;
  const std::vector<RankDivision> of_words = make_plan(request, costs).divisions;
  EXPECT_EQ(of_words.size(), 3U);
  for (const RankDivision& one : of_words) EXPECT_EQ(one.loss_ranks, LossRanks::vocabulary);
  // A batch that cannot be divided leaves the sequence.
  request = request_of(3, 4);
  for (const RankDivision& one : make_plan(request, costs).divisions) EXPECT_EQ(one.ring_ranks, 4);
  // A model of a few hundred slices has not one for each of a thousand ranks.
  request = request_of(1, 1024);
  request.problem.sizes.context = 4096;
  EXPECT_TRUE(make_plan(request, costs).fits);
}

TEST(RankChoice, IsTold) {
  PlanRequest request = request_of(1, 4);
  const Plan plan = make_plan(request, costs_of(request, {}));
  EXPECT_THAT(describe_choice(plan.divisions),
              HasSubstr(fmt::format("--ring 4 --shard {} --loss-ranks {}, ",
                                    name(plan.step.strategy.sharding), name(plan.step.strategy.loss_ranks))));
  std::vector<RankDivision> divisions = {
      {.ring_ranks = 4, .sharding = Sharding::full, .seconds = 2.0},
      {.ring_ranks = 4, .sharding = Sharding::none, .loss_ranks = LossRanks::vocabulary}};
  EXPECT_EQ(describe_choice(divisions),
            "--ring 4 --shard full --loss-ranks tokens, 2.0 s a step; --ring 4 --shard none --loss-ranks "
            "vocabulary does not fit");
  divisions.pop_back();
  EXPECT_EQ(describe_choice(divisions), "");
}

// Over a slow link one rank is faster where the context is short.
TEST(RankChoice, SaysWhereOneRankWouldBeFaster) {
  const auto notes = [](double bytes_per_second) {
    PlanQuestion question{.model = "qwen3-0.6b", .device = "h200", .request = {}};
    question.request.problem.config = find_model("qwen3-0.6b");
    question.request.problem.sizes = {.batch = 1, .context = 8192};
    question.request.problem.mask = parse_mask("causal");
    question.request.problem.compute_dtype = DType::bf16;
    question.request.device = find_in_catalogue("h200").device;
    question.request.budget_bytes = 100 * kGiB;
    question.request.pins.ranks = 2;
    question.link_bytes_per_second = bytes_per_second;
    std::string text;
    for (const std::string& note : answer_plan(question, catalogue_costs(question)).notes)
      text += note + "\n";
    return text;
  };
  EXPECT_THAT(notes(1e9), HasSubstr("one rank would be faster below about "));
  EXPECT_THAT(notes(450e9), Not(HasSubstr("one rank would be faster")));
}

}  // namespace
}  // namespace headroom
