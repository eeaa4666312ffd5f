// Models that draw_models.py drew, read from their files as transformers read them: `make parity` draws anew,
// and nothing else does, so that elsewhere there are none. Packed documents, several micro-batches with
// different numbers of labels, and clipping.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "headroom/cpu.h"
#include "headroom/model.h"
#include "headroom/train.h"
#include "memory/rehearsed.h"
#include "parity/reference.h"

namespace headroom {
namespace {

class Drawn : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder_ = parity_folder() / "drawn" / GetParam();
  ModelConfig config_ = find_model(folder_.string());
  SafetensorsFile reference_{folder_ / "reference.safetensors"};
  Shape shape_ = reference_.find("tokens")->shape;  // [micro, batch, seq]
  std::int64_t documents_ = reference_.find("starts")->shape[2] - 1;

  void fill(const Samples& batch, std::int64_t micro) const {
    const auto copy = [&](std::string_view name, std::span<std::int32_t> to) {
      const auto bytes = reference_.bytes(*reference_.find(name));
      const std::size_t each = bytes.size() / static_cast<std::size_t>(shape_[0]);
      std::memcpy(to.data(), bytes.data() + static_cast<std::size_t>(micro) * each, each);
    };
    copy("tokens", batch.tokens);
    copy("labels", batch.labels);
    copy("positions", batch.positions);
    if (documents_ > 0) copy("starts", batch.document_starts);
  }

  // Errors are judged beside `scale`, which is never nearly nothing: what is would be all rounding.
  void expect_close(const std::string& what, const std::string& parameter, double error, double scale,
                    double most) const {
    WorstErrors::note("drawn " + what, error / scale, GetParam() + ", " + parameter);
    EXPECT_LE(error / scale, most) << what << " of " << parameter;
  }
};

TEST_P(Drawn, LossGradientsAndSteps) {
  const Strategy strategy{.layers = {.keep_attention = 1, .recompute = config_.layers - 1},
                          .loss_chunk_tokens = 13,
                          .accumulation = shape_[0]};
  const StepSizes sizes{.batch = shape_[1], .context = shape_[2], .max_documents = documents_};
  const std::vector<float> losses = floats(reference_, "loss");
  const std::vector<float> norms = floats(reference_, "grad_norm");
  const OptimizerSettings optimizer{.learning_rate = 1e-3,
                                    .final_fraction = 1,
                                    .steps = std::ssize(losses),
                                    .beta2 = 0.95,
                                    .epsilon = 1e-3,
                                    .weight_decay = 0.1,
                                    .max_norm = floats(reference_, "clip").front()};
  run_rehearsed([&](Context& context) {
    Trainer trainer(Decoder(config_, strategy, sizes, {.causal = true}), optimizer);
    const ParameterTable& table = trainer.decoder().parameters();
    trainer.load(context,
                 [&](Staging& staging) { load_weights(folder_, table, trainer.buffers().weights, staging); });
    for (std::int64_t step = 1; step <= optimizer.steps; ++step) {
      LossSum loss;
      for (std::int64_t micro = 0; micro < shape_[0]; ++micro) {
        loss += trainer.micro_step(context, [&](const Samples& batch) { fill(batch, micro); });
      }
      const auto i = static_cast<std::size_t>(step - 1);
      if (step == 1) {
        context.run([&](const Stream&) {
          for (const Parameter& parameter : table.entries()) {
            const Difference d =
                difference(table.view(trainer.gradients(), parameter),
                           floats(reference_, "grad." + parameter.name), trainer.gradient_scale(loss.labels));
            expect_close("gradients", parameter.name, d.error, d.norm + 0.01 * norms[0], 1e-4);
          }
        });
      }
      const double norm = trainer.update(context, step, loss.labels);
      if (context.phantom()) continue;
      expect_close("losses", "the model", std::abs(*loss.mean() - losses[i]), losses[i] + 0.01 * losses[0],
                   2e-5);
      expect_close("gradient norms", "the model", std::abs(norm - norms[i]), norms[i] + 0.01 * norms[0],
                   1e-4);
    }
    context.run([&](const Stream&) {
      for (const Parameter& parameter : table.entries()) {
        const std::vector<float> after = floats(reference_, "after." + parameter.name);
        const double moved = distance(after, floats(reference_, "before." + parameter.name));
        const Difference d = difference(table.view(trainer.buffers().weights, parameter), after);
        // AdamW moves a weight by up to the learning rate in a step.
        const double most = optimizer.learning_rate * static_cast<double>(optimizer.steps) *
                            std::sqrt(static_cast<double>(after.size()));
        expect_close("movements", parameter.name, d.error, moved + 0.1 * most, 1e-2);
      }
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Transformers, Drawn, testing::ValuesIn(models_in(parity_folder() / "drawn")),
                         [](const auto& model) { return model.param; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Drawn);

}  // namespace
}  // namespace headroom
