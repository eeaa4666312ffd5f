// What a plan says besides its strategy: changes that would save memory, stages, categories, the state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>

#include "headroom/core/bytes.h"
#include "plan/small_requests.h"

namespace headroom {
namespace {

TEST(Plan, ChangesSaveWhatTheySay) {
  PlanRequest request = small_request(4);
  const CostModel costs = costs_of(request);
  const Plan plan = make_plan(request, costs);
  const std::vector<Change> changes = what_if(request, plan, costs);
  ASSERT_FALSE(changes.empty());
  for (const Change& change : changes) EXPECT_GT(change.saved_bytes, 0) << change.what;
  const auto recompute =
      std::ranges::find(changes, "every layer is recomputed from its input", &Change::what);
  ASSERT_NE(recompute, changes.end());
  Strategy strategy = plan.step.strategy;
  strategy.layers = {.recompute = 4};
  const PlannedStep step = plan_step(request, strategy, costs);
  EXPECT_EQ(recompute->saved_bytes,
            plan.step.arena_bytes + plan.step.host_bytes - step.arena_bytes - step.host_bytes);
  EXPECT_DOUBLE_EQ(recompute->added_seconds, step.seconds - plan.step.seconds);
}

// Whatever the plan itself does: just below the least that it takes, some single changes are enough and
// others are not.
TEST(Plan, AChangeFitsWhereItsOwnStepFits) {
  PlanRequest request = small_request(4);
  request.pins.loss_chunk_tokens = 128;  // the same space at every budget
  request.budget_bytes = kMiB;
  const CostModel costs = costs_of(request);
  const Plan least = make_plan(request, costs);
  ASSERT_FALSE(least.fits);
  const auto count = [&](std::int64_t budget) {
    request.budget_bytes = budget;
    const Plan plan = make_plan(request, costs);
    std::pair<int, int> fitting_and_not;
    for (const Change& change : what_if(request, plan, costs)) {
      const bool expected = budgeted_bytes(request, plan.step) - change.saved_bytes <= budget;
      EXPECT_EQ(change.fits, expected) << budget << ": " << change.what;
      ++(change.fits ? fitting_and_not.first : fitting_and_not.second);
    }
    return fitting_and_not;
  };
  const std::int64_t needed = budgeted_bytes(request, least.step);
  EXPECT_GT(count(needed - 1).first, 0);
  EXPECT_GT(count(kMiB).second, 0);
  const auto [fitting, not_fitting] = count(4 * needed);
  EXPECT_GT(fitting, 0);
  EXPECT_EQ(not_fitting, 0);
}

// What moves to the host has to fit there too.
TEST(Plan, AChangeFitsWhereTheHostHasRoom) {
  PlanRequest request = gpu_request();
  request.budget_bytes = kGiB;
  request.problem.sizes.context = 8192;  // inputs that are larger than the staging
  for (const std::int64_t room : {kGiB, staging_bytes(request)}) {
    request.host_budget_bytes = room;
    request.pins.offload_optimizer = false;
    request.pins.layers = LayerPolicy{.keep_all = 4};
    const CostModel costs = costs_of(request);
    const Plan plan = make_plan(request, costs);
    ASSERT_TRUE(plan.fits);
    const std::vector<Change> changes = what_if(request, plan, costs);
    for (const char* what : {"layer inputs move to the host", "the optimizer's state moves to the host"}) {
      const auto change = std::ranges::find(changes, what, &Change::what);
      ASSERT_NE(change, changes.end()) << what;
      EXPECT_EQ(change->fits, room == kGiB) << what;
    }
  }
}

TEST(Plan, TheOptimizersStateMovesWhereThereIsAHost) {
  PlanRequest request = small_request(4);
  const auto change = [&]() -> std::optional<Change> {
    const CostModel costs = costs_of(request);
    for (const Change& one : what_if(request, make_plan(request, costs), costs)) {
      if (one.what == "the optimizer's state moves to the host") return one;
    }
    return std::nullopt;
  };
  EXPECT_FALSE(change().has_value());  // a CPU's one memory would only get staging more
  request.device = find_in_catalogue("h200").device;
  const std::optional<Change> moved = change();
  ASSERT_TRUE(moved.has_value());
  const std::int64_t state = 8 * ParameterTable(request.problem.config).elements();
  EXPECT_EQ(moved->saved_bytes, state);  // the peak is in the micro-step, where nothing of it is left
  EXPECT_GT(moved->added_seconds, 0);
  request.problem.optimizer.kind = OptimizerKind::none;
  EXPECT_FALSE(change().has_value());
  request.pins.offload_optimizer = true;
  EXPECT_THROW((void)search_space(request), Error);
}

TEST(Plan, StagesFollowTheLedger) {
  const PlanRequest request = small_request(3);
  const Plan plan = make_plan(request, costs_of(request));
  const std::vector<StepStageUsage> stages = step_stages(plan.layout.rehearsal);
  std::vector<std::string> names;
  std::int64_t highest = 0;
  for (const StepStageUsage& row : stages) {
    names.emplace_back(name(row.stage));
    highest = std::max(highest, row.peak_bytes);
    EXPECT_EQ(total(row.at_peak), row.peak_bytes) << name(row.stage);
  }
  EXPECT_THAT(names, testing::ElementsAre("parameters", "after embedding", "after the first layer",
                                          "after all layers", "loss", "backward", "optimizer step"));
  EXPECT_EQ(highest, plan.step.live_peak_bytes);
}

// A layer that keeps everything, written out: what its backward holds, by category.
TEST(Plan, ALayersBackwardByCategory) {
  PlanRequest request = small_request(2);
  request.pins.layers = LayerPolicy{.keep_all = 2};
  const ModelConfig& config = request.problem.config;
  ASSERT_EQ(layer_spec(config, 0).norm, NormKind::pre_and_heads);
  const std::int64_t tokens = request.problem.sizes.context;
  const std::int64_t query = 4 * tokens * config.heads_q * config.head_dim;
  const std::int64_t key = 4 * tokens * config.heads_kv * config.head_dim;
  const std::int64_t hidden = 4 * tokens * config.hidden;
  const std::int64_t mlp = 4 * tokens * config.mlp;
  const std::int64_t row = 4 * tokens;
  // Query before and after its norm, attention's output; keys twice, values; statistics and LSE by head.
  const std::int64_t kept_attention = 3 * query + 3 * key + row * (2 * config.heads_q + config.heads_kv);
  // Input, norm 1, the sum after attention, norm 2; gate and up; two rows of statistics.
  const std::int64_t kept_layer = 4 * hidden + 2 * mlp + 2 * row;
  const std::int64_t batch = 3 * row + 2 * 4;  // tokens, labels, positions; the loss and its gradient
  const std::int64_t flat = 4 * ParameterTable(config).elements();

  const Plan plan = make_plan(request, costs_of(request));
  const std::vector<StageUsage> stages = usage_by_stage(plan.layout.rehearsal, Space::device);
  const auto at_peak = [&](std::string_view path, Category category) {
    const auto found = std::ranges::find_if(stages, [&](const StageUsage& one) {
      return one.phase == Phase::micro_step && one.stage.text() == path;
    });
    EXPECT_NE(found, stages.end()) << path;
    return found == stages.end() ? -1 : found->at_peak[static_cast<std::size_t>(category)];
  };
  for (const std::int64_t layer : {1, 0}) {
    const std::string backward = fmt::format("backward/layer {}", layer);
    // The layers before this one, the gradient that flows back, and that of norm 2.
    EXPECT_EQ(at_peak(backward + "/mlp", Category::activations),
              (layer + 1) * kept_layer + 2 * hidden + batch);
    EXPECT_EQ(at_peak(backward + "/mlp", Category::attention), (layer + 1) * kept_attention);
    // The MLP's are gone; gradients of output, query, key and value have come.
    EXPECT_EQ(at_peak(backward + "/attention", Category::attention),
              (layer + 1) * kept_attention + 2 * query + 2 * key);
    EXPECT_EQ(at_peak(backward + "/attention", Category::activations),
              layer * kept_layer + 2 * hidden + row + hidden + batch);
    for (const char* part : {"/mlp", "/attention"}) {
      EXPECT_EQ(at_peak(backward + part, Category::parameters), flat);
      EXPECT_EQ(at_peak(backward + part, Category::gradients), flat);
      EXPECT_EQ(at_peak(backward + part, Category::optimizer), 2 * flat);
      EXPECT_GT(at_peak(backward + part, Category::workspace), 0);
      EXPECT_EQ(at_peak(backward + part, Category::logits), 0);
    }
  }
}

// Bytes a parameter: 18, 8 and 6 with a 32nd; the plan lists each tensor.
TEST(Plan, TheStateByTensor) {
  PlanRequest request = small_request(2);
  request.problem.compute_dtype = DType::bf16;
  const std::int64_t flat = ParameterTable(request.problem.config).elements();
  const auto rows = [&](StatePrecision state, bool host) {
    request.problem.state = state;
    request.pins.offload_optimizer = host;
    request.host_budget_bytes = host ? kGiB : 0;
    const Plan plan = make_plan(request, costs_of(request));
    EXPECT_EQ(plan.step.strategy.state, state);
    std::vector<std::string> found;
    for (const StateBytes& row : state_bytes(plan.layout.rehearsal)) {
      const bool on_host = row.space == Space::host;
      found.push_back(fmt::format("{} {}{}", row.tensor,
                                  static_cast<double>(row.bytes) / static_cast<double>(flat),
                                  on_host ? " on the host" : ""));
    }
    return found;
  };
  using testing::ElementsAre;
  EXPECT_THAT(rows(StatePrecision::f32, false), ElementsAre("weights 2", "gradients 4", "master weights 4",
                                                            "first moments 4", "second moments 4"));
  EXPECT_THAT(rows(StatePrecision::bf16, false),
              ElementsAre("weights 2", "gradients 2", "first moments 2", "second moments 2"));
  EXPECT_THAT(rows(StatePrecision::eight_bit, false),
              ElementsAre("weights 2", "gradients 2", "first moments 1.015625", "second moments 1.015625"));
  EXPECT_THAT(rows(StatePrecision::eight_bit, true),
              ElementsAre("weights 2", "gradients 2", "first moments 1.015625 on the host",
                          "second moments 1.015625 on the host"));
}

TEST(Plan, ANarrowStateIsAWhatIfAndNeverChosen) {
  PlanRequest request = small_request(2);
  request.problem.compute_dtype = DType::bf16;
  request.pins.layers = LayerPolicy{.recompute = 2};
  request.pins.loss_chunk_tokens = 256;
  request.pins.mlp_tile_tokens = 256;
  const CostModel costs = costs_of(request);
  const auto change = [&](const Plan& plan) -> std::optional<Change> {
    for (const Change& one : what_if(request, plan, costs)) {
      if (one.what.starts_with("--state bf16")) return one;
    }
    return std::nullopt;
  };
  const Plan plan = make_plan(request, costs);
  const std::optional<Change> narrow = change(plan);
  ASSERT_TRUE(narrow.has_value());
  request.budget_bytes = budgeted_bytes(request, plan.step) - narrow->saved_bytes;
  const Plan short_of = make_plan(request, costs);
  EXPECT_FALSE(short_of.fits);
  EXPECT_EQ(short_of.step.strategy.state, StatePrecision::f32);
  ASSERT_TRUE(change(short_of).has_value());
  EXPECT_TRUE(change(short_of)->fits);
  request.problem.state = StatePrecision::bf16;
  EXPECT_TRUE(make_plan(request, costs).fits);
  EXPECT_FALSE(change(make_plan(request, costs)).has_value());
  request.problem.compute_dtype = DType::f32;
  EXPECT_THROW((void)make_plan(request, costs), Error);
}

TEST(Plan, WithoutAnOptimizerThereIsNoState) {
  PlanRequest request = small_request(2);
  const Plan with = make_plan(request, costs_of(request));
  request.problem.optimizer.kind = OptimizerKind::none;
  const Plan without = make_plan(request, costs_of(request));
  const std::int64_t flat = 4 * ParameterTable(request.problem.config).elements();
  EXPECT_EQ(with.step.live_peak_bytes - without.step.live_peak_bytes, 2 * flat);
}

}  // namespace
}  // namespace headroom
