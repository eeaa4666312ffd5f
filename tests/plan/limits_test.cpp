// What planning itself takes is bounded: the work of a search in layers looked at and strategies rehearsed,
// its heap in bytes. Past what can be bounded, requests are refused with the limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "headroom/core/bytes.h"
#include "headroom/eager.h"
#include "headroom/plan.h"
#include "memory/heap_counter.h"
#include "plan/search_space.h"

namespace headroom {
namespace {

using testing::HasSubstr;

PlanRequest request_of(std::int64_t layers, std::int64_t batch = 1) {
  PlanRequest request;
  request.problem.config = find_model("demo");
  request.problem.config.layers = layers;
  request.problem.sizes = {.batch = batch, .context = 256};
  request.problem.mask = parse_mask("causal");
  request.problem.compute_dtype = DType::bf16;
  request.device = find_in_catalogue("h200").device;
  request.budget_bytes = request.device.memory_bytes;
  return request;
}

CostModel costs_of(const PlanRequest& request) {
  return {request.device, request.problem.compute_dtype};
}

std::int64_t strategies(const SearchSpace& space) {
  return std::ssize(space.policies) * std::ssize(space.accumulations) * std::ssize(space.loss_chunks) *
         std::ssize(space.layer_cuts) * std::ssize(space.optimizer_offloads);
}

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    return error.what();
  }
  return "";
}

#if HEADROOM_HEAP_COUNTED
// Bytes of the heap while body runs, at most, over what there was before.
std::int64_t heap_taken(const std::function<void()>& body) {
  const std::int64_t before = heap_bytes;
  heap_peak_bytes = before;
  body();
  return heap_peak_bytes - before;
}
#endif

TEST(PlanLimits, LayersLookedAtAreBounded) {
  for (const std::int64_t layers : {1, 2, 7, 36, 126, 513, 1024}) {
    for (const std::int64_t batch : {1, 12, 720'720}) {
      for (const std::int64_t host_budget : {std::int64_t{0}, kGiB}) {
        PlanRequest request = request_of(layers, batch);
        request.host_budget_bytes = host_budget;
        const SearchSpace space = search_space(request);
        SCOPED_TRACE(fmt::format("{} layers, batch {}, host {}", layers, batch, host_budget));
        EXPECT_LE(strategies(space) * layers, 170'000'000);
        std::set<std::vector<std::int64_t>> different;
        for (const LayerPolicy& p : space.policies) {
          EXPECT_EQ(p.keep_all + p.keep_attention + p.recompute + p.offload, layers);
          different.insert({p.keep_all, p.keep_attention, p.recompute, p.offload, p.input_every});
        }
        EXPECT_EQ(std::ssize(different), std::ssize(space.policies));
        // All layers of one kind can always be had.
        const auto has = [&](const LayerPolicy& policy) {
          return std::ranges::find(space.policies, policy) != space.policies.end();
        };
        EXPECT_TRUE(has({.keep_all = layers}));
        EXPECT_TRUE(has({.keep_attention = layers}));
        EXPECT_TRUE(has({.recompute = layers}));
        EXPECT_EQ(has({.offload = layers}), host_budget > 0);
      }
    }
  }
}

// Models of usual depth are searched layer by layer.
TEST(PlanLimits, UsualModelsAreSearchedWhole) {
  PlanRequest request = request_of(36, 12);
  request.host_budget_bytes = kGiB;
  // Splits of 36 layers into four kinds, those with two or six layers to recompute once or twice more.
  const auto splits = [](std::int64_t layers) { return (layers + 1) * (layers + 2) * (layers + 3) / 6; };
  EXPECT_EQ(std::ssize(search_space(request).policies), splits(36) + splits(34) + splits(30));
  request = request_of(64);
  request.host_budget_bytes = kGiB;
  EXPECT_EQ(std::ssize(search_space(request).policies), splits(64) + splits(62) + splits(56));
  request = request_of(200);
  const auto pairs = [](std::int64_t layers) { return (layers + 1) * (layers + 2) / 2; };
  EXPECT_EQ(std::ssize(search_space(request).policies), pairs(200) + pairs(198) + pairs(185));
}

TEST(PlanLimits, MicroStepsDivideTheBatch) {
  for (const std::int64_t batch :
       {std::int64_t{1}, std::int64_t{7}, std::int64_t{60}, std::int64_t{840}, std::int64_t{720'720},
        std::int64_t{1} << 31, (std::int64_t{1} << 31) - 1, std::int64_t{4'294'967'296}}) {
    const std::vector<std::int64_t> parts = search_space(request_of(1, batch)).accumulations;
    EXPECT_EQ(parts.front(), 1);
    EXPECT_EQ(parts.back(), batch);
    EXPECT_TRUE(std::ranges::is_sorted(parts));
    EXPECT_TRUE(std::ranges::all_of(parts, [&](std::int64_t count) { return batch % count == 0; }));
    EXPECT_LE(parts.size(), 33u) << batch;
  }
  EXPECT_THAT(search_space(request_of(1, 60)).accumulations,
              testing::ElementsAre(1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60));
  EXPECT_EQ(search_space(request_of(1, 840)).accumulations.size(), 32u);  // all there are
  EXPECT_GE(search_space(request_of(1, 720'720)).accumulations.size(), 24u);
}

TEST(PlanLimits, WhatIsPastThemIsRefused) {
  const auto plan = [](std::int64_t layers, std::int64_t batch) {
    const PlanRequest request = request_of(layers, batch);
    return refusal([&] { (void)make_plan(request, costs_of(request)); });
  };
  EXPECT_THAT(plan(10'000, 1), HasSubstr("10,000 layers is too deep to plan; at most 1,024"));
  EXPECT_THAT(plan(1, std::int64_t{1} << 40), HasSubstr("at most 1,099,511,627,776 tokens"));
  EXPECT_THAT(plan(1, std::numeric_limits<std::int64_t>::max()), HasSubstr("too large to plan"));
  EXPECT_EQ(plan(1, std::int64_t{1} << 32), "");
  PlanRequest deep = request_of(1025);
  EXPECT_THAT(refusal([&] { (void)largest_context(deep, costs_of(deep)); }), HasSubstr("1,025 layers"));
  EXPECT_THAT(refusal([&] { (void)fit_training(deep, costs_of(deep)); }), HasSubstr("1,025 layers"));
  deep.problem.config.layers = 1;
  deep.problem.accumulation = std::numeric_limits<std::int64_t>::max() / 2;
  deep.problem.sizes.batch = 3;
  EXPECT_NE(refusal([&] { (void)fit_training(deep, costs_of(deep)); }), "");
  const auto eager = [](std::int64_t layers, StepSizes sizes, const EagerOptions& options) {
    ModelConfig config = find_model("demo");
    config.layers = layers;
    return refusal([&] { (void)rehearse_eager(config, sizes, options, find_in_catalogue("h200").device); });
  };
  EXPECT_THAT(eager(257, {.context = 256}, {}), HasSubstr("257 layers is too deep to plan in eager PyTorch"));
  EXPECT_THAT(eager(1, {.batch = 3, .context = std::numeric_limits<std::int64_t>::max() / 2}, {}),
              HasSubstr("too large to plan"));
  const EagerOptions kept{.loss = EagerLoss::chunked, .loss_chunk = 8};
  EXPECT_EQ(most_eager_tokens(kept), 8192);
  EXPECT_EQ(eager(1, {.context = 8192}, kept), "");
  EXPECT_THAT(eager(1, {.context = 8193}, kept), HasSubstr("has 1,025 of 8 tokens; at most 1,024 chunks"));
  EXPECT_EQ(eager(1, {.context = 8193}, {.loss_chunk = 8}), "");
}

TEST(PlanLimits, StrategiesThatBarelyFitArePassedOverInTheEnd) {
  EXPECT_EQ(whole_rehearsals(36), 113);
  EXPECT_EQ(whole_rehearsals(1024), 4);
  EXPECT_EQ(slack_after(112, 36), 0);
  EXPECT_EQ(slack_after(113, 36), 1.0 / 1024);
  EXPECT_EQ(slack_after(226, 36), 1.0 / 512);
  EXPECT_EQ(slack_after(4 * 11, 1024), 1);  // twice as much as the bound
}

// At budgets from too little to plenty.
TEST(PlanLimits, FewStrategiesAreRehearsedWhole) {
  PlanRequest request = request_of(120);
  request.host_budget_bytes = 64 * kMiB;
  const CostModel costs = costs_of(request);
  Strategy most{.layers = {.keep_all = 120}, .loss_chunk_tokens = 256, .mlp_tile_tokens = 256};
  most.compute_dtype = DType::bf16;
  const std::int64_t plenty = plan_step(request, most, costs).arena_bytes;
  bool fitted = false;
  for (std::int64_t part = 1; part <= 5; ++part) {
    request.budget_bytes = plenty * part / 5;
    const Plan plan = make_plan(request, costs);
    EXPECT_LE(plan.rehearsed, 8) << request.budget_bytes;
    EXPECT_TRUE(plan.fits || !fitted);
    fitted = plan.fits;
  }
  EXPECT_TRUE(fitted);
}

// Blocks of a few bytes, each rounded up: the bounds know what an arena makes of them.
TEST(PlanLimits, SmallBlocksAreRoundedUpInTheBounds) {
  PlanRequest request = request_of(24);
  request.device = {.kind = DeviceKind::cpu, .name = "a core"};  // its workspaces are small too
  request.problem.config.hidden = 8;
  request.problem.config.mlp = 8;
  request.problem.config.heads_q = request.problem.config.heads_kv = 1;
  request.problem.config.head_dim = 8;
  request.problem.sizes = {.batch = 4, .context = 1};
  const CostModel costs = costs_of(request);
  const std::int64_t most =
      plan_step(request, {.layers = {.keep_all = 24}, .compute_dtype = DType::bf16}, costs).arena_bytes;
  std::int64_t fitted = 0;
  for (std::int64_t part = 20; part <= 40; ++part) {
    request.budget_bytes = most * part / 40;
    const Plan plan = make_plan(request, costs);
    EXPECT_LE(plan.rehearsed, 3) << request.budget_bytes;
    fitted += plan.fits;
  }
  EXPECT_GT(fitted, 1);
  // A byte less on the host than every strategy needs there.
  request = request_of(24);
  request.host_budget_bytes = make_plan(request, costs).step.host_bytes - 1;
  const Plan plan = make_plan(request, costs);
  EXPECT_FALSE(plan.fits);
  EXPECT_EQ(plan.rehearsed, 1);
}

#if HEADROOM_HEAP_COUNTED
TEST(PlanLimits, TheHeapIsBounded) {
  EXPECT_LT(heap_taken([] {
              PlanRequest request = request_of(1024);
              const CostModel costs = costs_of(request);
              const Plan plan = make_plan(request, costs);
              EXPECT_TRUE(plan.fits);
              EXPECT_LE(what_if(request, plan, costs).size(), 4u);
            }),
            128 * kMiB);
  EXPECT_LT(heap_taken([] {
              PlanRequest request = request_of(36, 720'720);
              request.host_budget_bytes = 64 * kGiB;
              (void)make_plan(request, costs_of(request));
            }),
            128 * kMiB);
  EXPECT_LT(heap_taken([] {
              ModelConfig config = find_model("demo");
              config.layers = 256;
              const EagerOptions options{
                  .loss = EagerLoss::chunked, .loss_chunk = 8, .checkpoint_layers = false, .adamw = true};
              (void)eager_memory(
                  rehearse_eager(config, {.context = 8192}, options, find_in_catalogue("h200").device));
            }),
            128 * kMiB);
  // Were every chunk played, these would be two billion.
  EXPECT_LT(heap_taken([] {
              const EagerOptions options{.loss_chunk = 1};
              (void)eager_memory(rehearse_eager(find_model("demo"), {.context = 2'000'000'000}, options,
                                                find_in_catalogue("h200").device));
            }),
            kMiB);
}
#endif

}  // namespace
}  // namespace headroom
