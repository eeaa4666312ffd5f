// A step's ledger is as long as its layers make it, never as its tokens do: so a plan for 131,072 tokens
// costs what a plan for a thousand does.
#include <gtest/gtest.h>

#include <chrono>

#include "headroom/train.h"
#include "model/small_models.h"

namespace headroom {
namespace {

struct Rehearsal {
  std::vector<std::size_t> events;  // of every phase
  std::int64_t device_bytes = 0;
};

Rehearsal rehearse_training(const ModelConfig& config, const Strategy& strategy, const StepSizes& sizes) {
  const Layout layout = rehearse(
      [&](Context& context) {
        Trainer trainer(Decoder(config, strategy, sizes, {.causal = true}), {});
        trainer.load(context, [&] { trainer.initialize(context, 1); });
        static_cast<void>(trainer.micro_step(context, {}));
        static_cast<void>(trainer.update(context, 1));
        static_cast<void>(trainer.evaluate(context, {}));
      },
      {.name = "made up", .cores = 8});
  Rehearsal result{.events = {}, .device_bytes = layout.reserved(Space::device)};
  for (const Ledger::Phase& phase : layout.rehearsal.phases()) result.events.push_back(phase.events.size());
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
                            .compute_dtype = DType::bf16};
    const Rehearsal few = rehearse_training(config, strategy, {.batch = 1, .seq = 64});
    const Rehearsal many = rehearse_training(config, strategy, {.batch = 3, .seq = 4096, .max_documents = 0});
    EXPECT_EQ(few.events, many.events);
    EXPECT_EQ(few.events.size(), 4U);
    EXPECT_GT(many.device_bytes, few.device_bytes);
  }
}

TEST(StepRehearsal, ALongContextIsPlannedAtOnce) {
  const ModelConfig config = built_in_model("qwen3-8b");
  const Strategy strategy{.layers = {.recompute = 36},
                          .loss_chunk_tokens = 1024,
                          .mlp_tile_tokens = 4096,
                          .compute_dtype = DType::bf16};
  const Rehearsal few = rehearse_training(config, strategy, {.batch = 1, .seq = 1024});
  const auto begin = std::chrono::steady_clock::now();
  const Rehearsal many = rehearse_training(config, strategy, {.batch = 1, .seq = 131'072});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(few.events, many.events);
  // It takes a hundredth of that; a rehearsal that touches what it plans takes minutes.
  EXPECT_LT(seconds.count(), 2);
  // 8.19e9 parameters of 2 + 4 + 4 + 4 + 4 bytes, and 37 layer inputs.
  const std::int64_t least = ParameterTable(config).elements() * 18 + std::int64_t{36} * 131'072 * 4096 * 2;
  EXPECT_GT(many.device_bytes, least);
  EXPECT_LT(many.device_bytes, least + (std::int64_t{24} << 30));
}

}  // namespace
}  // namespace headroom
