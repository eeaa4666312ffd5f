// Training runs on a GPU: what a resumed run keeps, and moving between devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/temporary_folder.h"
#include "cuda/gpu_test.h"
#include "headroom/core/bytes.h"
#include "headroom/jobs/train.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class CudaTraining : public GpuTest {
 protected:
  [[nodiscard]] TrainingOptions options(std::string_view run, std::string device) const {
    return {.model = "demo",
            .data = "recall",
            .context = 512,
            .budget_bytes = 512 * kMiB,
            .dtype = "f32",
            .optimizer = {.steps = 6},
            .out = (folder_ / run).string(),
            .devices = {std::move(device)},
            .threads = 2};
  }
  // Goes on where the folder has a checkpoint, and stops after a step.
  static TrainingResult run(TrainingOptions options, std::int64_t last_step, Strategy* strategy = nullptr) {
    options.resume = latest_checkpoint(options.out).has_value();
    TrainingPlan plan = plan_training(options);
    if (strategy != nullptr) *strategy = plan.fit.strategy;
    std::int64_t step = 0;
    return train(plan, {.step = [&](const StepReport& report) { step = report.step; },
                        .stop = [&] { return step == last_step; }});
  }

  TemporaryFolder folder_;
};

TEST_F(CudaTraining, AResumedRunIsCutAsBeforeAndHasTheSameBits) {
  TrainingOptions cut = options("whole", "cuda:0");
  cut.pins = {.loss_chunk_tokens = 128, .mlp_tile_tokens = 96};
  const fs::path whole = run(cut, 6).checkpoint;
  cut.out = (folder_ / "halves").string();
  static_cast<void>(run(cut, 3));
  cut.pins = {};
  Strategy strategy;
  const fs::path halves = run(cut, 6, &strategy).checkpoint;
  EXPECT_EQ(strategy.loss_chunk_tokens, 128);
  EXPECT_EQ(strategy.mlp_tile_tokens, 96);
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    EXPECT_TRUE(content(halves / file) == content(whole / file)) << file;
  }
}

TEST_F(CudaTraining, ARunMovesFromTheCpuToTheGpuAndBack) {
  const double on_cpu = run(options("cpu", "cpu"), 6).last_loss.value();
  static_cast<void>(run(options("moved", "cpu"), 2));
  static_cast<void>(run(options("moved", "cuda:0"), 4));
  TrainingOptions back = options("moved", "cpu");
  back.resume = true;
  EXPECT_THAT(plan_training(back).notes,
              testing::Contains(testing::AllOf(HasSubstr("device cuda:0 (this run: cpu)"),
                                               HasSubstr("last bits of results may differ"))));
  EXPECT_NEAR(run(options("moved", "cpu"), 6).last_loss.value(), on_cpu, 1e-4 * on_cpu);
}

}  // namespace
}  // namespace headroom
