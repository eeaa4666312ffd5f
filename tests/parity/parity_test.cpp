// The same loss, gradients and AdamW steps as Hugging Face transformers, whose results lie in reference/ (or
// in the folder that HEADROOM_PARITY names).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "headroom/cpu.h"
#include "headroom/model.h"
#include "headroom/train.h"
#include "memory/rehearsed.h"
#include "parity/reference.h"

namespace headroom {
namespace {

std::filesystem::path reference_folder() {
  return parity_folder() / "reference";
}

const testing::Environment* const kWorstErrors = testing::AddGlobalTestEnvironment(new WorstErrors);

class Parity : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder_ = reference_folder() / GetParam();
  ModelConfig config_ = parse_model_config(read_small_file(folder_ / "config.json", 1 << 20));
  SafetensorsFile reference_{folder_ / "reference.safetensors"};

  void fill(const Samples& batch) const {
    const auto copy = [&](std::string_view name, std::span<std::int32_t> to) {
      const auto bytes = reference_.bytes(*reference_.find(name));
      std::memcpy(to.data(), bytes.data(), bytes.size());
    };
    copy("tokens", batch.tokens);
    copy("labels", batch.labels);
    const auto seq = static_cast<std::size_t>(reference_.find("tokens")->shape[1]);
    for (std::size_t i = 0; i < batch.positions.size(); ++i) {
      batch.positions[i] = static_cast<std::int32_t>(i % seq);
    }
  }
};

TEST_P(Parity, LossGradientsAndFiveSteps) {
  const Shape& shape = reference_.find("tokens")->shape;
  const Strategy strategy{.layers = {.keep_attention = 1, .recompute = config_.layers - 1}};
  const Mask causal{.causal = true};
  const OptimizerSettings optimizer{
      .learning_rate = 1e-3, .final_fraction = 1, .steps = 5, .beta2 = 0.95, .weight_decay = 0.1};
  const std::vector<float> losses = floats(reference_, "loss_after");
  const std::vector<float> norms = floats(reference_, "grad_norm");
  run_rehearsed([&](Context& context) {
    Trainer trainer(Decoder(config_, strategy, {.batch = shape[0], .context = shape[1]}, causal), optimizer);
    const ParameterTable& table = trainer.decoder().parameters();
    trainer.load(context,
                 [&](Staging& staging) { load_weights(folder_, table, trainer.buffers().weights, staging); });
    for (std::int64_t step = 1; step <= 5; ++step) {
      const LossSum loss = trainer.micro_step(context, [&](const Samples& batch) { fill(batch); });
      if (step == 1) {
        context.run([&](const Stream&) {
          for (const Parameter& parameter : table.entries()) {
            const Difference d =
                difference(table.view(trainer.gradients(), parameter),
                           floats(reference_, "grad." + parameter.name), trainer.gradient_scale(loss.labels));
            WorstErrors::note("gradients", d.error / d.norm, GetParam() + ", " + parameter.name);
            EXPECT_LE(d.error, 1e-4 * d.norm) << parameter.name;
          }
        });
      }
      const double norm = trainer.update(context, step, loss.labels);
      if (context.phantom()) continue;
      const auto i = static_cast<std::size_t>(step - 1);
      WorstErrors::note("losses", std::abs(*loss.mean() - losses[i]) / losses[i], GetParam());
      EXPECT_NEAR(*loss.mean(), losses[i], 1e-5 * losses[i]) << "step " << step;
      EXPECT_NEAR(norm, norms[i], 1e-4 * norms[i]) << "step " << step;
    }
    context.run([&](const Stream&) {
      const SafetensorsFile before(folder_ / "model.safetensors");
      for (const Parameter& parameter : table.entries()) {
        const std::vector<float> after = floats(reference_, "after." + parameter.name);
        const std::vector<float> start = floats(before, parameter.name);
        const double moved = distance(after, start);
        // A near-zero gradient's rounding decides its direction under AdamW, so the way is judged with room.
        const Difference d = difference(table.view(trainer.buffers().weights, parameter), after);
        WorstErrors::note("movements", d.error / moved, GetParam() + ", " + parameter.name);
        EXPECT_LE(d.error, 1e-2 * moved) << parameter.name;
        EXPECT_LE(d.error, 1e-4 * d.norm) << parameter.name;
      }
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Transformers, Parity, testing::ValuesIn(models_in(reference_folder())),
                         [](const auto& model) { return model.param; });

}  // namespace
}  // namespace headroom
