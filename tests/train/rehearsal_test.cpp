// A step's ledger is as long as its layers make it, never as its tokens do: so a plan for 131,072 tokens
// costs what a plan for a thousand does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "headroom/train.h"
#include "model/small_models.h"

namespace headroom {
namespace {

struct Rehearsal {
  std::vector<std::size_t> events;  // of every phase
  std::int64_t device_bytes = 0;
};

Ledger training_ledger(const ModelConfig& config, const Strategy& strategy, const StepSizes& sizes) {
  Context context({.name = "made up", .cores = 8});
  {
    Trainer trainer(Decoder(config, strategy, sizes, {.causal = true}), {});
    trainer.load(context, [&](Staging&) { trainer.initialize(context, 1); });
    const LossSum loss = trainer.micro_step(context, {});
    static_cast<void>(trainer.update(context, 1, loss.labels));
    static_cast<void>(trainer.evaluate(context, {}));
  }
  return std::move(context).take_ledger();
}

Rehearsal rehearse_training(const ModelConfig& config, const Strategy& strategy, const StepSizes& sizes) {
  const Layout layout = make_layout(training_ledger(config, strategy, sizes));
  Rehearsal result{.events = {}, .device_bytes = layout.reserved(Space::device)};
  for (const Ledger::Trace& phase : layout.rehearsal.phases()) result.events.push_back(phase.events.size());
  return result;
}

TEST(StepRehearsal, EventsDoNotDependOnTokens) {
  const ModelConfig config = small_model(true, true);
  for (const LayerPolicy& policy :
       {LayerPolicy{.keep_all = 5}, LayerPolicy{.keep_attention = 5},
        LayerPolicy{.recompute = 5, .input_every = 2}, LayerPolicy{.offload = 5},
        LayerPolicy{.keep_all = 1, .keep_attention = 1, .recompute = 2, .offload = 1, .input_every = 2}}) {
    const Strategy strategy{.layers = policy,
                            .loss_chunk_tokens = 96,
                            .loss_chunk_vocab = 512,
                            .mlp_tile_tokens = 32,
                            .offload_optimizer = policy.offload > 0,
                            .compute_dtype = DType::bf16};
    const Rehearsal few = rehearse_training(config, strategy, {.batch = 1, .context = 64});
    const Rehearsal many = rehearse_training(config, strategy, {.batch = 3, .context = 4096});
    EXPECT_EQ(few.events, many.events);
    EXPECT_EQ(few.events.size(), 4U);
    EXPECT_GT(many.device_bytes, few.device_bytes);
  }
}

TEST(StepRehearsal, AStepOfTooManyTokensIsRefused) {
  TrainingProblem problem;
  problem.config = small_model(true, true);
  problem.mask.causal = true;
  const auto refuses = [&](const StepSizes& sizes, std::int64_t accumulation) {
    problem.sizes = sizes;
    problem.accumulation = accumulation;
    const DeviceDescription device{.name = "made up", .cores = 8};
    EXPECT_THROW(validate(problem), Error);
    EXPECT_THROW(static_cast<void>(step_tokens(problem)), Error);
    EXPECT_THROW(static_cast<void>(rehearse(problem, {.layers = {.recompute = 5}}, device)), Error);
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  refuses({.batch = kMost, .context = 2}, 1);
  refuses({.batch = 2, .context = kMost}, 1);
  refuses({.batch = kMost / 2, .context = 2}, 2);
  refuses({.batch = 1, .context = 2}, kMost);
  refuses({.batch = std::int64_t{1} << 32, .context = std::int64_t{1} << 20}, std::int64_t{1} << 11);
  refuses({.batch = 0, .context = 2}, 1);
  refuses({.batch = 1, .context = 0}, 1);
  refuses({.batch = 1, .context = 2}, 0);
  refuses({.batch = -1, .context = -2}, 1);
  problem.sizes = {.batch = std::int64_t{1} << 32, .context = std::int64_t{1} << 20};
  problem.accumulation = std::int64_t{1} << 10;
  EXPECT_EQ(step_tokens(problem), std::int64_t{1} << 62);
}

TEST(StepRehearsal, ALongContextIsPlannedAtOnce) {
  const ModelConfig config = built_in_model("qwen3-8b");
  const Strategy strategy{.layers = {.recompute = 36},
                          .loss_chunk_tokens = 1024,
                          .mlp_tile_tokens = 4096,
                          .compute_dtype = DType::bf16};
  const Rehearsal few = rehearse_training(config, strategy, {.batch = 1, .context = 1024});
  const Rehearsal many = rehearse_training(config, strategy, {.batch = 1, .context = 131'072});
  EXPECT_EQ(few.events, many.events);
  // 8.19e9 parameters of 2 + 4 + 4 + 4 + 4 bytes, and 37 layer inputs.
  const std::int64_t least = ParameterTable(config).elements() * 18 + std::int64_t{36} * 131'072 * 4096 * 2;
  EXPECT_GT(many.device_bytes, least);
  EXPECT_LT(many.device_bytes, least + (std::int64_t{24} << 30));
}

TEST(StepRehearsal, TheOptimizersStateMovesToTheHost) {
  const ModelConfig config = built_in_model("qwen3-0.6b");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Strategy strategy{.layers = {.recompute = 28}, .compute_dtype = dtype};
    const Ledger here = training_ledger(config, strategy, {.batch = 1, .context = 64});
    strategy.offload_optimizer = true;
    const Ledger away = training_ledger(config, strategy, {.batch = 1, .context = 64});
    const auto held = [](const Ledger& ledger, Space space) {
      const Ledger::Trace& phase = ledger.phases()[*ledger.find_phase(Phase::update)];
      return total(phase.live_before[static_cast<std::size_t>(space)]);
    };
    const std::int64_t flats = dtype == DType::f32 ? 2 : 3;
    const std::int64_t state = 4 * flats * ParameterTable(config).elements();
    EXPECT_EQ(held(here, Space::device) - held(away, Space::device), state);
    EXPECT_EQ(held(away, Space::host) - held(here, Space::host), state);
    // Two pieces of it, of a 64th each, are on the device.
    std::int64_t staged = 0;
    for (const Event& event : away.phases()[*away.find_phase(Phase::update)].events) {
      if (event.kind == EventKind::allocate && event.category == Category::staging) staged += event.bytes;
    }
    EXPECT_NEAR(static_cast<double>(staged), static_cast<double>(state) / 32, 4096);
  }
}

// What is live when the loss begins, as "block of stage": all that forward kept.
std::vector<std::string> kept_for_backward(const LayerPolicy& policy) {
  const Ledger ledger =
      training_ledger(small_model(true, true), {.layers = policy}, {.batch = 1, .context = 64});
  std::map<std::uint32_t, std::string> live;
  const Ledger::Trace& step = ledger.phases()[*ledger.find_phase(Phase::micro_step)];
  for (const Event& event : step.events) {
    const std::string stage = ledger.stage_path(event.stage).text();
    if (event.kind == EventKind::stage_begin && stage == "loss") break;
    if (event.kind == EventKind::free) live.erase(event.id);
    if (event.kind != EventKind::allocate || !stage.starts_with("forward/")) continue;
    live[event.id] = fmt::format("{} of {}", ledger.text(event.name), stage.substr(8));
  }
  std::vector<std::string> names;
  for (const auto& [id, name] : live) names.push_back(name);
  return names;
}

// A layer's input is made by the layer before it.
TEST(StepRehearsal, EveryLayerKeepsWhatItsPolicySays) {
  using testing::UnorderedElementsAre;
  const std::string last = "layer input of layer 4/mlp";  // of the final norm
  EXPECT_THAT(kept_for_backward({.recompute = 5}),
              UnorderedElementsAre("layer input of embedding", "layer input of layer 0/mlp",
                                   "layer input of layer 1/mlp", "layer input of layer 2/mlp",
                                   "layer input of layer 3/mlp", last));
  EXPECT_THAT(kept_for_backward({.recompute = 5, .input_every = 3}),
              UnorderedElementsAre("layer input of embedding", "layer input of layer 2/mlp", last));
  EXPECT_THAT(
      kept_for_backward({.keep_attention = 2, .recompute = 2, .offload = 1, .input_every = 2}),
      UnorderedElementsAre("layer input of embedding", "attention output of layer 0/attention",
                           "attention lse of layer 0/attention", "layer input of layer 0/mlp",
                           "attention output of layer 1/attention", "attention lse of layer 1/attention",
                           "layer input of layer 1/mlp", "layer input on the host of layer 4", last));
  const std::vector<std::string> all = kept_for_backward({.keep_all = 1, .keep_attention = 3, .offload = 1});
  EXPECT_THAT(
      all, testing::IsSupersetOf({"query before norm of layer 0/attention", "mlp gate and up of layer 0/mlp",
                                  "norm 2 rstd of layer 0/attention"}));
  EXPECT_THAT(all, testing::Not(testing::Contains("mlp gate and up of layer 1/mlp")));
  EXPECT_THAT(all, testing::Contains("attention lse of layer 3/attention"));
  EXPECT_EQ(all.size(), 16U + 3 * 3 + 1 + 1);
}

}  // namespace
}  // namespace headroom
