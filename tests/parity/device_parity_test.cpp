// Loss and gradients of the kernels for GPUs beside those of Hugging Face transformers.
#include <gtest/gtest.h>

#include <cstring>

#include "memory/filled_backend.h"
#include "model/small_models.h"
#include "ops/cases.h"
#include "parity/reference.h"

namespace headroom {
namespace {

struct ParityModel {
  std::filesystem::path folder;
  ModelConfig config = parse_model_config(read_small_file(folder / "config.json", 1 << 20));
  SafetensorsFile reference{folder / "reference.safetensors"};

  [[nodiscard]] std::vector<float> weights() const {
    const SafetensorsFile file(folder / "model.safetensors");
    return in_one(file, "");
  }
  [[nodiscard]] std::vector<float> gradients() const { return in_one(reference, "grad."); }
  [[nodiscard]] HostBatch batch() const {
    HostBatch batch{.tokens = numbers("tokens"), .labels = numbers("labels"), .positions = {}};
    const auto context = static_cast<std::size_t>(sizes().context);
    for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
      batch.positions.push_back(static_cast<std::int32_t>(i % context));
    }
    return batch;
  }
  [[nodiscard]] StepSizes sizes() const {
    const Shape& shape = reference.find("tokens")->shape;
    return {.batch = shape[0], .context = shape[1]};
  }

 private:
  [[nodiscard]] std::vector<std::int32_t> numbers(std::string_view name) const {
    const auto bytes = reference.bytes(*reference.find(name));
    std::vector<std::int32_t> values(bytes.size() / sizeof(std::int32_t));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  // All parameters in one buffer, as a step has them.
  [[nodiscard]] std::vector<float> in_one(const SafetensorsFile& file, const std::string& prefix) const {
    const ParameterTable table(config);
    std::vector<float> flat(static_cast<std::size_t>(table.elements()));
    for (const Parameter& parameter : table.entries()) {
      std::ranges::copy(floats(file, prefix + parameter.name), flat.begin() + parameter.offset);
    }
    return flat;
  }
};

template <std::uint8_t kValue>
std::unique_ptr<Backend> filled_backend(int threads) {
  return std::make_unique<FilledBackend>(backend_under_test(threads), kValue);
}

class DeviceParity : public OpsLevels {};
INSTANTIATE_TEST_SUITE_P(Device, DeviceParity, all_levels());

// In f32 as close as the CPU is held to; in bf16 within three times the error of the CPU's step in bf16.
TEST_P(DeviceParity, LossAndGradients) {
  const std::filesystem::path models = parity_folder() / "reference";
  for (const std::string& name : models_in(models)) {
    SCOPED_TRACE(name);
    const ParityModel model{.folder = models / name};
    const std::vector<float> weights = model.weights();
    const std::vector<float> expected = model.gradients();
    const float expected_loss = floats(model.reference, "loss_after")[0];
    const HostBatch batch = model.batch();
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SmallStep step{.config = model.config,
                     .sizes = model.sizes(),
                     .strategy = {.layers = {.keep_attention = 1, .recompute = model.config.layers - 1},
                                  .compute_dtype = dtype}};
      double allowed = 1e-4;
      double allowed_loss = 1e-5;
      if (dtype == DType::bf16) {
        const StepResult plain = step.run(weights, batch);
        allowed = 3 * worst_difference(model.config, plain.gradients, expected).relative;
        allowed_loss = 5e-3;
      }
      step.make_backend = backend_under_test;
      const StepResult actual = step.run(weights, batch);
      EXPECT_NEAR(actual.loss, expected_loss, allowed_loss * expected_loss) << headroom::name(dtype);
      const WorstDifference worst = worst_difference(model.config, actual.gradients, expected);
      EXPECT_LE(worst.relative, allowed) << headroom::name(dtype) << ", " << worst.parameter;
    }
  }
}

// Bytes of ones are not a number in any of a step's formats.
TEST_P(DeviceParity, ReadsNothingThatWasNotWritten) {
  const std::filesystem::path models = parity_folder() / "reference";
  for (const std::string& name : models_in(models)) {
    const ParityModel model{.folder = models / name};
    const std::vector<float> weights = model.weights();
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(name + " in " + std::string(headroom::name(dtype)));
      SmallStep step{.config = model.config,
                     .sizes = model.sizes(),
                     .strategy = {.layers = {.keep_attention = 1, .recompute = model.config.layers - 1},
                                  .compute_dtype = dtype}};
      step.make_backend = filled_backend<0x00>;
      const StepResult zeros = step.run(weights, model.batch());
      step.make_backend = filled_backend<0xff>;
      const StepResult ones = step.run(weights, model.batch());
      EXPECT_EQ(zeros.loss, ones.loss);
      EXPECT_EQ(zeros.gradients, ones.gradients);
    }
  }
}

}  // namespace
}  // namespace headroom
