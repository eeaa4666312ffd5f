// A run takes what its rehearsal said: on the heap nothing more, of the system the arenas.
#include <gtest/gtest.h>

#include "memory/heap_counter.h"
#include "train/process_memory.h"

namespace headroom {
namespace {

constexpr Strategy kStrategies[] = {
    {.layers = {.keep_all = 5}},
    {.layers = {.recompute = 5, .input_every = 2}, .offload_optimizer = true},
    {.layers = {.keep_all = 1, .keep_attention = 1, .recompute = 1, .offload = 2}},
    {.layers = {.keep_all = 1, .offload = 4}, .offload_optimizer = true},
};

TEST(TrainMemory, TheHeapStaysStillAfterTheFirstStep) {
#if HEADROOM_HEAP_COUNTED
  for (Strategy strategy : kStrategies) {
    std::int64_t before = 0;
    std::int64_t peak = 0;
    strategy.mlp_tile_tokens = 64;
    strategy.compute_dtype = DType::bf16;
    static_cast<void>(train_and_watch(small_model(true, true), strategy, {.batch = 2, .context = 150},
                                      {.causal = true}, 6, [&](std::int64_t step) {
                                        if (step == 1) {
                                          before = heap_bytes;
                                          heap_peak_bytes = before;
                                        }
                                        peak = heap_peak_bytes;
                                      }));
    EXPECT_LT(peak - before, kMiB);
  }
  // The counter counts: as much on purpose is seen, also after it is gone.
  const std::int64_t start = heap_bytes;
  heap_peak_bytes = start;
  { const std::vector<char> on_purpose(static_cast<std::size_t>(kMiB)); }
  EXPECT_GE(heap_peak_bytes - start, kMiB);
#else
  GTEST_SKIP() << "a sanitizer brings its own malloc";
#endif
}

TEST(TrainMemory, WhatIsReservedIsWhatWasPlanned) {
  for (const Strategy& strategy : kStrategies) {
    const MemoryOfRun memory =
        train_and_watch(small_model(false, true), strategy, {.batch = 2, .context = 150}, {.causal = true}, 2,
                        [](std::int64_t) {});
    EXPECT_EQ(memory.reserved_bytes, memory.planned_bytes);
    EXPECT_GT(memory.planned_bytes, kMiB);
  }
}

TEST(TrainMemory, TheProcessHoldsTheArenasAndLittleElse) {
  if (!kResidentIsOurs) GTEST_SKIP() << "a sanitizer holds memory of its own";
  for (const Strategy& strategy : kStrategies) {
    const MemoryOfRun memory =
        train_and_watch(small_model(true, true), strategy, {.batch = 2, .context = 600}, {.causal = true}, 3,
                        [](std::int64_t) {});
    ASSERT_GT(memory.resident_start_bytes, 0);
    EXPECT_LE(memory.resident_peak_bytes, memory.planned_bytes + 64 * kMiB);
    EXPECT_GE(memory.resident_peak_bytes, memory.planned_bytes);  // every page is present
  }
}

}  // namespace
}  // namespace headroom
