// A training run, and the memory that the system says this process holds while it goes on.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "headroom/core/bytes.h"
#include "headroom/core/memory_status.h"
#include "headroom/train.h"
#include "model/small_models.h"

namespace headroom {

// Sanitizers keep shadows and freed blocks of their own, which are no part of the promise.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kResidentIsOurs = false;
#else
inline constexpr bool kResidentIsOurs = true;
#endif

// The most that this process has held since, looked at every two milliseconds.
class ResidentWatch {
 public:
  [[nodiscard]] std::int64_t peak_bytes() const { return peak_bytes_; }

 private:
  std::atomic<std::int64_t> peak_bytes_ = 0;
  std::jthread thread_{[this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      peak_bytes_ = std::max<std::int64_t>(peak_bytes_, process_resident_bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }};
};

struct MemoryOfRun {
  std::int64_t planned_bytes = 0;         // of both arenas
  std::int64_t reserved_bytes = 0;        // asked of the system
  std::int64_t resident_peak_bytes = 0;   // over all steps
  std::int64_t resident_start_bytes = 0;  // before the arenas
};

// Rehearses, then runs so many steps; after_step(step) looks at whatever it likes.
template <class AfterStep>
MemoryOfRun train_and_watch(const ModelConfig& config, const Strategy& strategy, const StepSizes& sizes,
                            const Mask& mask, std::int64_t steps, const AfterStep& after_step) {
  const HostBatch batch = random_batch(config, sizes);
  const auto fill = [&](const Samples& views) { batch.copy_to(views); };
  const OptimizerSettings optimizer{.steps = steps};
  CpuBackend backend(2);
  const Layout layout = rehearse(
      [&](Context& context) {
        Trainer trainer(Decoder(config, strategy, sizes, mask), optimizer);
        trainer.load(context, [&](Staging&) { trainer.initialize(context, 1); });
        const LossSum loss = trainer.micro_step(context, fill);
        static_cast<void>(trainer.update(context, 1, loss.labels));
      },
      backend.description());
  MemoryOfRun memory{.planned_bytes = layout.reserved(Space::device) + layout.reserved(Space::host),
                     .reserved_bytes = 0,
                     .resident_peak_bytes = 0,
                     .resident_start_bytes = process_resident_bytes()};
  Context context(backend, layout);
  Trainer trainer(Decoder(config, strategy, sizes, mask), optimizer);
  const auto watch = [&] {
    memory.resident_peak_bytes = std::max(memory.resident_peak_bytes, process_resident_bytes());
  };
  trainer.load(context, [&](Staging&) { trainer.initialize(context, 1); });
  watch();
  for (std::int64_t step = 1; step <= steps; ++step) {
    const LossSum loss = trainer.micro_step(context, fill);
    EXPECT_TRUE(std::isfinite(loss.sum));
    watch();
    EXPECT_TRUE(std::isfinite(trainer.update(context, step, loss.labels)));
    watch();
    after_step(step);
  }
  memory.reserved_bytes = backend.reserved_bytes(Space::device) + backend.reserved_bytes(Space::host);
  return memory;
}

}  // namespace headroom
