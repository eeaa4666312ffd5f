// Planned equals run, to the byte, over a cover of what a training step can vary.
#include <gtest/gtest.h>

#include "headroom/cpu.h"
#include "headroom/plan.h"
#include "model/small_models.h"

namespace headroom {
namespace {

struct Combination {
  LayerPolicy layers;
  std::int64_t seq = 0;
  std::int64_t batch = 1;
  std::int64_t accumulation = 1;
  std::int64_t documents = 0;
  DType dtype = DType::f32;
  std::string mask;
  std::int64_t loss_chunk = 0;
  std::int64_t mlp_tile = 0;
  bool offload_optimizer = false;
};

// Every policy with every mask and dtype; the other values go round beside them, so that every pair of
// values meets.
std::vector<Combination> cover() {
  constexpr std::int64_t kLayers = 3;
  const std::vector<LayerPolicy> policies = {{.keep_all = kLayers},
                                             {.keep_attention = kLayers},
                                             {.recompute = kLayers},
                                             {.recompute = kLayers, .input_every = 2},
                                             {.offload = kLayers},
                                             {.keep_all = 1, .keep_attention = 1, .recompute = 1},
                                             {.keep_all = 1, .recompute = 1, .offload = 1},
                                             {.keep_attention = 1, .offload = 2}};
  const std::vector<std::string> masks = {"causal", "window:17", "causal+dilated:32/2"};
  const std::vector<std::int64_t> seqs = {1, 40, 97, 128, 200};
  const std::vector<std::int64_t> chunks = {0, 7, 96};
  const std::vector<std::int64_t> tiles = {0, 16, 100, 4096};
  std::vector<Combination> combinations;
  std::size_t n = 0;
  for (const LayerPolicy& policy : policies) {
    for (const std::string& mask : masks) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (const std::int64_t seq : seqs) {
          combinations.push_back({.layers = policy,
                                  .seq = seq,
                                  .batch = 1 + static_cast<std::int64_t>(n % 3),
                                  .accumulation = 1 + static_cast<std::int64_t>(n / 2 % 2),
                                  .documents = n % 4 == 1 ? 3 : 0,
                                  .dtype = dtype,
                                  .mask = mask,
                                  .loss_chunk = chunks[n % chunks.size()],
                                  .mlp_tile = tiles[n / 3 % tiles.size()],
                                  .offload_optimizer = n / 5 % 2 == 1});
          ++n;
        }
      }
    }
  }
  return combinations;
}

void run_as_planned(const Combination& c) {
  TrainingProblem problem;
  problem.config = find_model("demo");
  problem.config.layers = 3;
  problem.sizes = {.batch = c.batch, .seq = c.seq, .max_documents = c.documents};
  problem.mask = parse_mask(c.mask);
  problem.compute_dtype = c.dtype;
  problem.accumulation = c.accumulation;
  const Strategy strategy{.layers = c.layers,
                          .loss_chunk_tokens = c.loss_chunk,
                          .mlp_tile_tokens = c.mlp_tile,
                          .accumulation = c.accumulation,
                          .offload_optimizer = c.offload_optimizer,
                          .compute_dtype = c.dtype};
  CpuBackend backend(2);
  const Layout layout = rehearse_training(problem, strategy, backend.description());
  Context context(backend, layout);
  Trainer trainer(Decoder(problem.config, strategy, problem.sizes, problem.mask), problem.optimizer);
  HostBatch batch = random_batch(problem.config, problem.sizes);
  for (std::int64_t row = 0; c.documents > 0 && row < c.batch; ++row) {
    for (const std::int64_t start : {std::int64_t{0}, c.seq / 3, c.seq / 2, c.seq})
      batch.document_starts.push_back(static_cast<std::int32_t>(start));
  }
  const auto fill = [&](const StepBatch& views) { batch.copy_to(views); };
  trainer.load(context, [&] { trainer.initialize(context, 1); });
  for (std::int64_t i = 0; i < c.accumulation; ++i)
    EXPECT_TRUE(std::isfinite(trainer.micro_step(context, fill)));
  EXPECT_TRUE(std::isfinite(trainer.update(context, 1)));
  EXPECT_TRUE(std::isfinite(trainer.evaluate(context, fill)));
  trainer.save(context, [] {});
  for (const Space space : {Space::device, Space::host}) {
    EXPECT_EQ(context.ledger().usage(space).peak_bytes, layout.rehearsal.usage(space).peak_bytes);
    EXPECT_EQ(backend.reserved_bytes(space), layout.reserved(space));
    EXPECT_GE(layout.reserved(space), layout.rehearsal.usage(space).peak_bytes);
  }
  const auto planned = layout.rehearsal.phases();
  ASSERT_EQ(context.ledger().phases().size(), planned.size());
  for (std::size_t i = 0; i < planned.size(); ++i)
    EXPECT_EQ(context.ledger().phases()[i].events, planned[i].events);
}

TEST(PlannedEqualsRun, OverACoverOfCombinations) {
  const std::vector<Combination> combinations = cover();
  EXPECT_GE(combinations.size(), 200u);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr std::size_t kEvery = 7;  // slow there, and the bytes are the same
#else
  constexpr std::size_t kEvery = 1;
#endif
  for (std::size_t i = 0; i < combinations.size(); i += kEvery) {
    const Combination& c = combinations[i];
    SCOPED_TRACE(
        fmt::format("keep {} attention {} recompute {} every {} offload {}, seq {} batch {} x {}, {} {} "
                    "documents {} chunk {} tile {} optimizer on the host {}",
                    c.layers.keep_all, c.layers.keep_attention, c.layers.recompute, c.layers.input_every,
                    c.layers.offload, c.seq, c.batch, c.accumulation, c.mask, name(c.dtype), c.documents,
                    c.loss_chunk, c.mlp_tile, c.offload_optimizer));
    run_as_planned(c);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace headroom
