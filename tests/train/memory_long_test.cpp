// The same promise past a gibibyte: many tokens of a narrow model that keeps everything and sees 64 back.
#include <gtest/gtest.h>

#include "train/process_memory.h"

namespace headroom {
namespace {

TEST(TrainMemory, AnArenaOfMoreThanAGibibyte) {
  if (!kResidentIsOurs) GTEST_SKIP() << "a sanitizer holds memory of its own";
  ModelConfig config = small_model(true, true);
  config.hidden = 32;
  config.heads_q = 2;
  config.heads_kv = 1;
  config.mlp = 64;
  config.layers = 4;
  const MemoryOfRun memory = train_and_watch(
      config, {.layers = {.keep_all = 4}, .loss_chunk_tokens = 4096, .mlp_tile_tokens = 4096},
      {.batch = 1, .seq = 160'000}, {.causal = true, .window_left = 64}, 2, [](std::int64_t) {});
  EXPECT_GT(memory.planned_bytes, kGiB);
  EXPECT_EQ(memory.reserved_bytes, memory.planned_bytes);
  EXPECT_LE(memory.resident_peak_bytes, memory.planned_bytes + 64 * kMiB);
  EXPECT_GE(memory.resident_peak_bytes, memory.planned_bytes);
}

}  // namespace
}  // namespace headroom
