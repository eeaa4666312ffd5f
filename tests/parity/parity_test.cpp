// The same loss, gradients and AdamW steps as Hugging Face transformers, whose results lie in reference/ (or
// in the folder that HEADROOM_PARITY names).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "headroom/cpu.h"
#include "headroom/model.h"
#include "headroom/train.h"
#include "memory/rehearsed.h"

namespace headroom {
namespace {

std::filesystem::path reference_folder() {
  const char* given = std::getenv("HEADROOM_PARITY");
  return std::filesystem::path(given != nullptr ? given : HEADROOM_PARITY_FOLDER) / "reference";
}

std::vector<std::string> models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(reference_folder())) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<float> floats(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* entry = file.find(name);
  EXPECT_NE(entry, nullptr) << name;
  std::vector<float> values(static_cast<std::size_t>(entry->shape.elements()));
  file.read_into(*entry, TensorView(values.data(), DType::f32, entry->shape));
  return values;
}

struct Difference {
  double error = 0;  // length of the difference
  double norm = 0;   // of what is expected
};

Difference difference(const TensorView& ours, const std::vector<float>& expected, double scale = 1) {
  Difference result;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double e = expected[i];
    result.error += std::pow(scale * static_cast<double>(ours.data<float>()[i]) - e, 2);
    result.norm += e * e;
  }
  return {std::sqrt(result.error), std::sqrt(result.norm)};
}

class Parity : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder_ = reference_folder() / GetParam();
  ModelConfig config_ = parse_model_config(read_small_file(folder_ / "config.json", 1 << 20));
  SafetensorsFile reference_{folder_ / "reference.safetensors"};

  void fill(const StepBatch& batch) const {
    const auto copy = [&](std::string_view name, const TensorView& to) {
      const auto bytes = reference_.bytes(*reference_.find(name));
      std::memcpy(to.raw(), bytes.data(), bytes.size());
    };
    copy("tokens", batch.tokens);
    copy("labels", batch.labels);
    for (std::int64_t i = 0; i < batch.positions.elements(); ++i) {
      batch.positions.data<std::int32_t>()[i] = static_cast<std::int32_t>(i % batch.positions.extent(1));
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
    Trainer trainer(Decoder(config_, strategy, {.batch = shape[0], .seq = shape[1]}, causal), optimizer);
    const ParameterTable& table = trainer.decoder().parameters();
    trainer.load(context, [&] {
      context.run([&](const Stream&) { load_weights(folder_, table, trainer.buffers().weights); });
    });
    for (std::int64_t step = 1; step <= 5; ++step) {
      const LossSum loss = trainer.micro_step(context, [&](const StepBatch& batch) { fill(batch); });
      if (step == 1) {
        context.run([&](const Stream&) {
          for (const Parameter& parameter : table.entries()) {
            const Difference d =
                difference(table.view(trainer.gradients(), parameter),
                           floats(reference_, "grad." + parameter.name), trainer.gradient_scale(loss.labels));
            EXPECT_LE(d.error, 1e-4 * d.norm) << parameter.name;
          }
        });
      }
      const double norm = trainer.update(context, step, loss.labels);
      if (context.phantom()) continue;
      const auto i = static_cast<std::size_t>(step - 1);
      EXPECT_NEAR(*loss.mean(), losses[i], 1e-5 * losses[i]) << "step " << step;
      EXPECT_NEAR(norm, norms[i], 1e-4 * norms[i]) << "step " << step;
    }
    context.run([&](const Stream&) {
      const SafetensorsFile before(folder_ / "model.safetensors");
      for (const Parameter& parameter : table.entries()) {
        const std::vector<float> after = floats(reference_, "after." + parameter.name);
        const std::vector<float> start = floats(before, parameter.name);
        double moved = 0;
        for (std::size_t i = 0; i < after.size(); ++i) moved += std::pow(after[i] - start[i], 2);
        // A near-zero gradient's rounding decides its direction under AdamW, so the way is judged with room.
        const Difference d = difference(table.view(trainer.buffers().weights, parameter), after);
        EXPECT_LE(d.error, 1e-2 * std::sqrt(moved)) << parameter.name;
        EXPECT_LE(d.error, 1e-4 * d.norm) << parameter.name;
      }
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Transformers, Parity, testing::ValuesIn(models()),
                         [](const auto& model) { return model.param; });

}  // namespace
}  // namespace headroom
