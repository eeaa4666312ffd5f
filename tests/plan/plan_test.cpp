#include "headroom/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "headroom/core/bytes.h"
#include "headroom/cpu.h"
#include "plan/small_requests.h"
#include "plan/uniform.h"

namespace headroom {
namespace {

// Every strategy of the space, rehearsed and packed.
std::vector<PlannedStep> try_everything(const PlanRequest& request, const CostModel& costs) {
  std::vector<PlannedStep> steps;
  const SearchSpace space = search_space(request);
  for (const std::int64_t accumulation : space.accumulations) {
    for (const LossChunks& chunks : space.loss_chunks) {
      for (const LayerCut& cut : space.layer_cuts) {
        for (const LayerPolicy& policy : space.policies) {
          for (const bool offload_optimizer : space.optimizer_offloads) {
            const Strategy strategy{.layers = policy,
                                    .loss_chunk_tokens = chunks.tokens,
                                    .loss_chunk_vocab = chunks.vocab,
                                    .mlp_tile_tokens = cut.mlp_tile_tokens,
                                    .projections_again = cut.projections_again,
                                    .accumulation = accumulation,
                                    .offload_optimizer = offload_optimizer,
                                    .compute_dtype = request.problem.compute_dtype};
            steps.push_back(plan_step(request, strategy, costs));
          }
        }
      }
    }
  }
  return steps;
}

// How the search fares against all of them, at budgets from too little to plenty.
void expect_the_best(PlanRequest request, const std::vector<PlannedStep>& all, int budgets) {
  const CostModel costs = costs_of(request);
  request.budget_bytes = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> bytes;  // of what the host has room for
  for (const PlannedStep& step : all) {
    if (fits(request, step)) bytes.push_back(budgeted_bytes(request, step));
  }
  const auto [least, most] = std::ranges::minmax(bytes);
  int fitted = 0;
  for (int i = 0; i < budgets; ++i) {
    request.budget_bytes = least - 64 + (most - least + 128) * i / (budgets - 1);
    const Plan plan = make_plan(request, costs);
    double best = 0;
    for (const PlannedStep& step : all) {
      if (fits(request, step) && (best == 0 || step.seconds < best)) best = step.seconds;
    }
    ASSERT_EQ(plan.fits, best > 0) << request.budget_bytes;
    EXPECT_EQ(plan.candidates, std::ssize(all));
    if (!plan.fits) continue;
    ++fitted;
    EXPECT_NEAR(plan.step.seconds, best, 1e-9 * best)
        << request.budget_bytes << ": " << describe(plan.step.strategy);
    EXPECT_TRUE(fits(request, plan.step));
    EXPECT_EQ(plan.layout.reserved(Space::device), plan.step.arena_bytes);
    EXPECT_EQ(plan.layout.reserved(Space::host), plan.step.host_bytes);
  }
  EXPECT_GE(fitted, budgets - 4);
}
void expect_the_best(const PlanRequest& request, int budgets) {
  expect_the_best(request, try_everything(request, costs_of(request)), budgets);
}

TEST(Plan, FindsWhatTryingEverythingFinds) {
  PlanRequest request = small_request(8);
  request.pins.loss_chunk_tokens = 128;  // the same space at every budget
  expect_the_best(request, 24);
}

TEST(Plan, FindsItWithOffloadingAndAccumulation) {
  PlanRequest request = small_request(4);
  request.problem.sizes.batch = 4;
  request.host_budget_bytes = kGiB;
  request.pins.loss_chunk_tokens = 96;
  expect_the_best(request, 20);
}

// A host that has room for everything, for the optimizer's state alone, for layer inputs alone, for nothing.
TEST(Plan, FindsItWhereTheHostHasLittleRoom) {
  PlanRequest request = gpu_request();
  EXPECT_EQ(search_space(request).optimizer_offloads, (std::vector<bool>{false, true}));
  const std::vector<PlannedStep> all = try_everything(request, costs_of(request));
  const std::int64_t state = 12 * ParameterTable(request.problem.config).elements();
  const std::int64_t staging = staging_bytes(request);
  for (const std::int64_t room : {kGiB, state + staging, state / 2 + staging, staging}) {
    request.host_budget_bytes = room;
    expect_the_best(request, all, 24);
  }
}

// Over ranks a plan is that of the rank that takes most, and every rank reserves what was planned for it.
TEST(Plan, OverRanksIsThatOfTheLargest) {
  for (const std::int64_t ranks : {2, 3, 8}) {
    PlanRequest request = small_request(2);
    request.problem.sizes.context = 251;
    request.pins.ranks = ranks;
    const Plan plan = make_plan(request, costs_of(request));
    EXPECT_TRUE(plan.fits);
    EXPECT_EQ(plan.step.strategy.ring_ranks, ranks);
    std::vector<std::int64_t> reserved;
    for (int rank = 0; rank < ranks; ++rank) {
      reserved.push_back(rehearse_training(request.problem, plan.step.strategy, request.device, rank)
                             .reserved(Space::device));
    }
    EXPECT_EQ(plan.step.rank_arena_bytes, reserved);
    EXPECT_EQ(plan.step.arena_bytes, std::ranges::max(reserved));
    EXPECT_EQ(plan.layout.reserved(Space::device), std::ranges::max(reserved));
    // The same strategy has not room for a byte less.
    request.budget_bytes = budgeted_bytes(request, plan.step) - 1;
    EXPECT_FALSE(fits(request, plan_step(request, plan.step.strategy, costs_of(request))));
  }
}

// Ranks divide the loss as somebody has said; otherwise in the way that is faster, of those that fit.
TEST(Plan, ChoosesWhatRanksDivideOfTheLoss) {
  PlanRequest request = small_request(2);
  request.problem.config.vocab = 5000;
  request.problem.sizes.context = 251;
  request.pins.ranks = 4;
  request.pins.sharding = Sharding::full;
  const auto planned = [&](std::optional<LossRanks> pin) {
    request.pins.loss_ranks = pin;
    return make_plan(request, costs_of(request));
  };
  const Plan tokens = planned(LossRanks::tokens);
  const Plan words = planned(LossRanks::vocabulary);
  EXPECT_EQ(tokens.step.strategy.loss_ranks, LossRanks::tokens);
  EXPECT_EQ(words.step.strategy.loss_ranks, LossRanks::vocabulary);
  EXPECT_EQ(planned({}).step.seconds, std::min(tokens.step.seconds, words.step.seconds));
  // Between what the two take at least, only one of them fits.
  request.pins.layers = LayerPolicy{.recompute = 2};
  request.pins.mlp_tile_tokens = 32;
  request.pins.loss_chunk_tokens = 32;
  const auto needed = [&](LossRanks pin) { return budgeted_bytes(request, planned(pin).step); };
  const std::int64_t of_words = needed(LossRanks::vocabulary);
  ASSERT_LT(of_words, needed(LossRanks::tokens));
  request.budget_bytes = of_words;
  const Plan fitting = planned({});
  EXPECT_TRUE(fitting.fits);
  EXPECT_EQ(fitting.step.strategy.loss_ranks, LossRanks::vocabulary);
  request.problem.sizes.context = 256;
  request.budget_bytes = needed(LossRanks::vocabulary);
  request.pins.loss_ranks.reset();
  EXPECT_GE(largest_context(request, costs_of(request)), 256);
}

// Groups share a batch, whatever the micro-steps; a divided state takes less of each rank.
TEST(Plan, OverGroupsOfRanks) {
  PlanRequest request = small_request(2);
  request.problem.sizes = {.batch = 8, .context = 251};
  request.pins.ranks = 4;
  request.pins.ring = 2;
  std::vector<std::int64_t> needed;
  for (const Sharding sharding : {Sharding::none, Sharding::optimizer}) {
    request.pins.sharding = sharding;
    const Plan plan = make_plan(request, costs_of(request));
    EXPECT_TRUE(plan.fits);
    const Strategy& strategy = plan.step.strategy;
    EXPECT_EQ(strategy.ring_ranks, 2);
    EXPECT_EQ(strategy.data_ranks, 2);
    EXPECT_EQ(strategy.sharding, sharding);
    EXPECT_EQ(8 / strategy.accumulation % 2, 0);
    EXPECT_EQ(std::ssize(plan.step.rank_arena_bytes), 4);
    EXPECT_EQ(plan.step.arena_bytes, std::ranges::max(plan.step.rank_arena_bytes));
    Strategy least = strategy;
    least.accumulation = 4;
    least.layers = {.recompute = 2};
    needed.push_back(plan_step(request, least, costs_of(request)).arena_bytes);
  }
  EXPECT_LT(needed[1], needed[0]);
  request.problem.sizes.batch = 3;
  EXPECT_THROW(static_cast<void>(make_plan(request, costs_of(request))), Error);
}

TEST(Plan, SecondsAreExactAndBytesABound) {
  const PlanRequest request = gpu_request();
  const CostModel costs = costs_of(request);
  for (const PlannedStep& step : try_everything(request, costs)) {
    const LayerCosts layers(request, step.strategy, costs, std::array{step.strategy.layers}, {});
    const RunCosts run = run_costs(request, step.strategy, costs);
    const LayerPolicy& policy = step.strategy.layers;
    SCOPED_TRACE(describe(step.strategy));
    EXPECT_NEAR(layers.seconds(policy) + run.update_seconds, step.seconds, 1e-9 * step.seconds);
    EXPECT_LE(run.device_bytes + layers.bytes_at_least(policy), step.arena_bytes);
    EXPECT_LE(run.update_peak_bytes, step.arena_bytes);
    EXPECT_EQ(run.host_bytes + layers.host_bytes(policy, run.transfer_bytes), step.host_bytes);
  }
}

TEST(Plan, MoreMemoryIsNeverSlower) {
  PlanRequest request = small_request(6);
  const CostModel costs = costs_of(request);
  double before = 1e30;
  for (std::int64_t budget = 4 * kMiB; budget <= 32 * kMiB; budget += kMiB) {
    request.budget_bytes = budget;
    const Plan plan = make_plan(request, costs);
    if (!plan.fits) continue;
    EXPECT_LE(plan.step.seconds, before * (1 + 1e-9)) << budget;
    EXPECT_LE(plan.step.arena_bytes + plan.step.host_bytes, budget);
    before = plan.step.seconds;
  }
  EXPECT_LT(before, 1e30);
}

TEST(Plan, PinsHold) {
  PlanRequest request = small_request(4);
  request.problem.sizes.batch = 2;
  request.pins = {.layers = LayerPolicy{.keep_all = 1, .recompute = 3},
                  .loss_chunk_tokens = 96,
                  .mlp_tile_tokens = 64,
                  .accumulation = 2,
                  .offload_optimizer = true};
  const Plan plan = make_plan(request, costs_of(request));
  EXPECT_EQ(plan.candidates, 1);
  EXPECT_EQ(plan.step.strategy.layers, *request.pins.layers);
  EXPECT_EQ(plan.step.strategy.loss_chunk_tokens, 96);
  EXPECT_EQ(plan.step.strategy.mlp_tile_tokens, 64);
  EXPECT_EQ(plan.step.strategy.accumulation, 2);
  EXPECT_TRUE(plan.step.strategy.offload_optimizer);
  request.pins.accumulation = 3;
  EXPECT_THROW((void)search_space(request), Error);
}

TEST(Plan, TheLargestContextIsTheLargest) {
  PlanRequest request = small_request(3);
  request.budget_bytes = 24 * kMiB;
  const CostModel costs = costs_of(request);
  const std::int64_t largest = largest_context(request, costs, 64);
  ASSERT_GT(largest, 64);
  request.problem.sizes.context = largest;
  EXPECT_TRUE(make_plan(request, costs).fits);
  request.problem.sizes.context = largest + 64;
  EXPECT_FALSE(make_plan(request, costs).fits);
  request.budget_bytes = kKiB;
  EXPECT_EQ(largest_context(request, costs), 0);
}

// Whatever context it is asked from, and also where a host takes some of the inputs and not all.
TEST(Plan, TheLargestContextIsTheLargestWithAHost) {
  PlanRequest request = small_request(6);
  request.budget_bytes = 24 * kMiB;
  const CostModel costs = costs_of(request);
  std::int64_t before = 0;
  for (const std::int64_t host : {kMiB, 2 * kMiB, 4 * kMiB, 8 * kMiB, 64 * kMiB}) {
    request.host_budget_bytes = host;
    request.problem.sizes.context = 64;
    const std::int64_t largest = largest_context(request, costs, 64);
    EXPECT_GE(largest, before) << host;
    before = largest;
    for (const std::int64_t seq : {largest, largest + 64, largest + 256}) {
      request.problem.sizes.context = seq;
      EXPECT_EQ(make_plan(request, costs).fits, seq == largest) << seq << " tokens, host " << host;
      EXPECT_EQ(largest_context(request, costs, 64), largest) << "asked from " << seq;
    }
  }
}

// A GPU's step is rehearsed with the GPU's own rows, all of which have kernels.
TEST(Plan, UsesTheRowsOfItsDevice) {
  PlanRequest request = small_request(2);
  request.device = find_in_catalogue("h200").device;
  request.budget_bytes = kGiB;
  request.problem.compute_dtype = DType::bf16;
  const Plan plan = make_plan(request, costs_of(request));
  const TrainingRehearsal rehearsal = rehearse(request.problem, plan.step.strategy, request.device);
  std::set<std::string_view> with_kernels;
  for (const WorkRecord& record : rehearsal.micro_step) {
    if (record.work.kind == WorkKind::kernel && !record.work.assumed) with_kernels.insert(record.work.row);
  }
  EXPECT_THAT(with_kernels, testing::ElementsAre("cublaslt", "cuda", "fused-cuda", "sm90"));
  EXPECT_TRUE(plan.step.assumed.empty());
  EXPECT_TRUE(assumed_kernels(rehearsal).empty());
  request.device = describe_cpu();
  EXPECT_TRUE(make_plan(request, costs_of(request)).step.assumed.empty());
}

// Which rows a step runs, and why not the faster ones of its kind of device.
// The loss of a GPU takes the whole vocabulary at once, however small the budget is.
TEST(Plan, ASmallBudgetOfAGpuGetsAnAnswer) {
  PlanRequest request = small_request(2);
  request.device = find_in_catalogue("h200").device;
  request.problem.config.vocab = 5000;
  request.budget_bytes = 1;
  EXPECT_FALSE(make_plan(request, costs_of(request)).fits);
  EXPECT_GT(naive_training_bytes(request.problem, request.device), 0);
}

TEST(Plan, SaysWhyAFasterImplementationDoesNotRun) {
  const auto of = [](std::string_view device, DType dtype) {
    PlanRequest request = small_request(2);
    request.problem.config.head_dim = 64;
    request.problem.compute_dtype = dtype;
    const DeviceDescription description = device == "cpu" ? describe_cpu() : find_in_catalogue(device).device;
    const Strategy strategy{.layers = {.keep_all = 2}, .loss_chunk_tokens = 32, .compute_dtype = dtype};
    std::vector<std::string> lines;
    for (const StepImplementation& one : step_implementations(request.problem, strategy, description))
      lines.push_back(fmt::format("{} {}", one.family, describe(one)));
    return lines;
  };
  EXPECT_THAT(of("cpu", DType::f32),
              testing::ElementsAre("attention tiled, the fastest there is",
                                   "loss fused, the fastest there is", "products cpu, the fastest there is"));
  EXPECT_THAT(of("h200", DType::bf16), testing::ElementsAre("attention sm90, the fastest there is",
                                                            "loss fused-cuda, the fastest there is",
                                                            "products cublaslt, the fastest there is"));
  EXPECT_EQ(of("h200", DType::f32).front(),
            "attention bf16x3; not sm90: multiplies 16-bit elements, this is f32");
  EXPECT_EQ(of("gtx-1080", DType::bf16).front(),
            "attention portable; not sm90: needs compute capability 9.0, this is 6.1; not bf16x3: needs "
            "compute capability 9.0, this is 6.1; not tf32x3: needs compute capability 8.0, this is 6.1");
}

// A run on a GPU may offload by itself, and does only where nothing else fits or it is faster.
TEST(Plan, ARunOffloadsWhereNothingElseFits) {
  PlanRequest request = small_request(4);
  request.device = find_in_catalogue("h200").device;
  request.problem.sizes.context = 256;
  request.problem.compute_dtype = DType::bf16;
  request.host_budget_bytes = kGiB;
  const CostModel costs = costs_of(request);
  const auto offloads = [](const Strategy& strategy) {
    return strategy.offload_optimizer || strategy.layers.offload > 0;
  };
  PlanRequest alone = request;
  alone.host_budget_bytes = 0;
  alone.budget_bytes = 1;
  alone.budget_bytes = fit_training(alone, costs).needed_bytes;  // the least without offloading
  alone.budget_bytes -= 64 * kKiB;
  EXPECT_FALSE(fit_training(alone, costs).fits);
  EXPECT_FALSE(offloads(fit_training(request, costs).strategy));  // there is room for everything
  request.budget_bytes = alone.budget_bytes;
  EXPECT_TRUE(fit_training(request, costs).fits);
  EXPECT_TRUE(offloads(fit_training(request, costs).strategy));
}

TEST(Plan, NoPartIsLargerThanAMicroStep) {
  PlanRequest request = small_request(2);
  request.problem.sizes = {.batch = 6, .context = 32};
  request.budget_bytes = kGiB;
  request.pins.accumulation = 3;
  const Plan plan = make_plan(request, costs_of(request));
  EXPECT_LE(plan.step.strategy.loss_chunk_tokens, 64);
  EXPECT_LE(plan.step.strategy.mlp_tile_tokens, 64);
}

// The bounds that the search goes by are a little less than what a packed step takes.
TEST(Plan, TheLargestContextIsRehearsed) {
  PlanRequest request = small_request(3);
  request.problem.sizes.context = 640;
  request.pins = {.layers = LayerPolicy{.recompute = 3},
                  .loss_chunk_tokens = 96,
                  .mlp_tile_tokens = 128,
                  .accumulation = 1,
                  .offload_optimizer = false};
  const CostModel costs = costs_of(request);
  const Plan plan = make_plan(request, costs);
  request.budget_bytes = budgeted_bytes(request, plan.step);
  EXPECT_EQ(largest_context(request, costs, 64), 640);
  --request.budget_bytes;
  EXPECT_EQ(largest_context(request, costs, 64), 576);
  request.problem.sizes.context = 64;
  EXPECT_EQ(largest_context(request, costs, 64), 576);
  request.problem.sizes.context = 4096;
  EXPECT_EQ(largest_context(request, costs, 64), 576);
}

// What a CPU stages counts against its one memory, to the byte.
TEST(Plan, OneMemoryHoldsArenaAndHost) {
  PlanRequest request = small_request(3);
  request.pins = {.layers = LayerPolicy{.keep_all = 3},
                  .loss_chunk_tokens = 96,
                  .mlp_tile_tokens = 128,
                  .accumulation = 1,
                  .offload_optimizer = false};
  const CostModel costs = costs_of(request);
  const PlannedStep step = make_plan(request, costs).step;
  ASSERT_GT(step.host_bytes, 0);
  request.budget_bytes = step.arena_bytes + step.host_bytes;
  EXPECT_TRUE(make_plan(request, costs).fits);
  EXPECT_EQ(bytes_over(request, step), 0);
  --request.budget_bytes;
  EXPECT_FALSE(make_plan(request, costs).fits);
  EXPECT_EQ(bytes_over(request, step), 1);
  EXPECT_FALSE(fits(request, step));
  // Where the host's part is set apart, and on a GPU, it does not count.
  request.budget_bytes = step.arena_bytes;
  request.host_budget_bytes = step.host_bytes;
  EXPECT_TRUE(make_plan(request, costs).fits);
  --request.host_budget_bytes;
  EXPECT_FALSE(make_plan(request, costs).fits);
  // The same for a run: what it reserves is what it needs.
  const TrainingProblem problem = small_request(3).problem;
  const DeviceDescription device = small_request(3).device;
  const std::int64_t needed =
      fit_training({.problem = problem, .device = device, .budget_bytes = kMiB, .pins = {}}, costs)
          .needed_bytes;
  const TrainingFit least =
      fit_training({.problem = problem, .device = device, .budget_bytes = needed, .pins = {}}, costs);
  ASSERT_TRUE(least.fits);
  const std::int64_t taken = least.layout.reserved(Space::device) + least.layout.reserved(Space::host);
  EXPECT_EQ(least.needed_bytes, taken);
  const TrainingFit tighter =
      fit_training({.problem = problem, .device = device, .budget_bytes = taken - 1, .pins = {}}, costs);
  EXPECT_TRUE(!tighter.fits || tighter.needed_bytes < taken);
}

}  // namespace
}  // namespace headroom
