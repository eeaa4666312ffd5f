// Small random models and batches, and one training step of them: what tests of decoder and
// trainer share. Everything is a function of seeds, so two runs differ only in what a test varies.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headroom/core/elements.h"
#include "headroom/core/random.h"
#include "headroom/cpu.h"
#include "headroom/model.h"
#include "headroom/ops.h"
#include "headroom/train/data.h"
#include "memory/rehearsed.h"

namespace headroom {

// Five layers of a Qwen3, or of a Llama; sizes that no tile divides.
inline ModelConfig small_model(bool tied, bool qwen3) {
  return {.family = qwen3 ? ModelFamily::qwen3 : ModelFamily::llama,
          .vocab = 211,
          .hidden = 48,
          .layers = 5,
          .heads_q = 4,
          .heads_kv = 2,
          .head_dim = 16,
          .mlp = 72,
          .rms_epsilon = 1e-6,
          .tied_embeddings = tied,
          .max_positions = 1 << 20,
          .rope = {.theta = 10'000}};
}

// A flat buffer of the model's weights: matrices that keep a vector's length, norms around 1.
inline std::vector<float> random_weights(const ModelConfig& config, std::uint64_t seed = 1) {
  const ParameterTable table(config);
  std::vector<float> flat(static_cast<std::size_t>(table.elements()));
  std::uint64_t stream = 0;
  for (const Parameter& parameter : table.entries()) {
    const Random random(seed, ++stream);
    const double scale = parameter.decays ? 1 / std::sqrt(static_cast<double>(parameter.shape[1])) : 0.2;
    for (std::int64_t i = 0; i < parameter.shape.elements(); ++i) {
      flat[static_cast<std::size_t>(parameter.offset + i)] = static_cast<float>(
          (parameter.decays ? 0 : 1) + scale * random.normal(static_cast<std::uint64_t>(i)));
    }
  }
  return flat;
}

// A batch in memory of its own, row by row.
struct HostBatch {
  std::vector<std::int32_t> tokens, labels, positions;  // [batch, seq]
  std::vector<std::int32_t> document_starts = {};       // [batch, max_documents + 1]

  void copy_to(const Samples& batch) const {
    const auto copy = [](const std::vector<std::int32_t>& from, std::span<std::int32_t> to) {
      check(from.size() == to.size(), "{} values for {}", from.size(), to.size());
      std::ranges::copy(from, to.begin());
    };
    copy(tokens, batch.tokens);
    copy(labels, batch.labels);
    copy(positions, batch.positions);
    copy(document_starts, batch.document_starts);
  }
};

// Every seventh label counts for nothing, at other places in every row.
inline HostBatch random_batch(const ModelConfig& config, const StepSizes& sizes, std::uint64_t seed = 2) {
  HostBatch batch;
  const Random random(seed);
  const auto vocab = static_cast<std::uint64_t>(config.vocab);
  for (std::int64_t i = 0; i < sizes.batch * sizes.context; ++i) {
    const auto index = static_cast<std::uint64_t>(2 * i);
    batch.tokens.push_back(static_cast<std::int32_t>(random.below(index, vocab)));
    batch.labels.push_back(i % 7 == 3 ? -100 : static_cast<std::int32_t>(random.below(index + 1, vocab)));
    batch.positions.push_back(static_cast<std::int32_t>(i % sizes.context));
  }
  return batch;
}

struct StepResult {
  float loss = 0;
  float evaluated = 0;           // by evaluate, on the same batch
  std::vector<float> gradients;  // flat

  bool operator==(const StepResult&) const = default;  // the same numbers; none of them is NaN
};

struct SmallStep {
  ModelConfig config;
  StepSizes sizes{.batch = 2, .context = 150};
  Strategy strategy{};
  Mask mask{.causal = true};
  int threads = 2;
  float loss_gradient = 1;
  float gradients_before = 0;       // what stands in the gradients already
  bool gradients_are_zero = false;  // the decoder is told so
  Decoder::Inspect inspect{};
  std::unique_ptr<Backend> (*make_backend)(int threads) = [](int count) -> std::unique_ptr<Backend> {
    return std::make_unique<CpuBackend>(count);
  };

  // Rehearses and runs evaluate and then train.
  [[nodiscard]] StepResult run(const std::vector<float>& weights, const HostBatch& host) const {
    const Decoder decoder(config, strategy, sizes, mask);
    const Shape flat{decoder.parameters().elements()};
    const DType dtype = strategy.compute_dtype;
    StepResult result;
    const auto program = [&](Context& context) {
      const auto take = [&](DType type, const Shape& shape) {
        return context.allocate({.name = "given", .dtype = type, .shape = shape});
      };
      context.phase(Phase::step, [&] {
        const Tensor exact = take(DType::f32, flat);
        const Tensor computed = take(dtype, flat);
        const Tensor gradients = take(gradient_dtype(strategy.state), flat);
        const Tensor widened = take(DType::f32, flat);
        const Tensor tokens = take(DType::i32, {sizes.batch, sizes.context});
        const Tensor labels = take(DType::i32, {sizes.batch, sizes.context});
        const Tensor positions = take(DType::i32, {sizes.batch, sizes.context});
        Tensor starts;
        if (sizes.max_documents > 0) starts = take(DType::i32, {sizes.batch, sizes.max_documents + 1});
        const Tensor loss = take(DType::f32, {1});
        const Tensor upstream = take(DType::f32, {1});
        const StepBatch batch{
            .tokens = tokens, .labels = labels, .positions = positions, .document_starts = starts};
        context.upload(exact, std::as_bytes(std::span(weights)));
        context.upload(tokens, std::as_bytes(std::span(host.tokens)));
        context.upload(labels, std::as_bytes(std::span(host.labels)));
        context.upload(positions, std::as_bytes(std::span(host.positions)));
        if (sizes.max_documents > 0) context.upload(starts, std::as_bytes(std::span(host.document_starts)));
        convert(context, exact, computed);
        fill(context, gradients, gradients_before);
        fill(context, upstream, loss_gradient);
        decoder.evaluate(context, batch, computed, loss, inspect);
        context.download(std::as_writable_bytes(std::span(&result.evaluated, 1)), loss);
        fill(context, loss, -1);
        decoder.train(context, batch,
                      {.weights = computed, .gradients = gradients, .gradients_are_zero = gradients_are_zero},
                      loss, upstream);
        context.download(std::as_writable_bytes(std::span(&result.loss, 1)), loss);
        result.gradients.resize(static_cast<std::size_t>(flat.elements()));
        convert(context, gradients, widened);
        context.download(std::as_writable_bytes(std::span(result.gradients)), widened);
      });
    };
    const std::unique_ptr<Backend> backend = make_backend(threads);
    Context context(*backend, rehearse(program, backend->description()));
    program(context);
    return result;
  }
};

// The same gradients, as bf16 holds them.
inline StepResult rounded_to_bf16(StepResult result) {
  for (float& gradient : result.gradients) gradient = static_cast<float>(BFloat16(gradient));
  return result;
}

// The largest, over the parameters, of |a - b| / |b| in the Euclidean norm; infinite where b is zero and a is
// not.
struct WorstDifference {
  double relative = 0;
  std::string parameter;
};
inline WorstDifference worst_difference(const ModelConfig& config, const std::vector<float>& a,
                                        const std::vector<float>& b) {
  WorstDifference worst;
  const ParameterTable table(config);
  for (const Parameter& parameter : table.entries()) {
    double error = 0;
    double norm = 0;
    for (std::int64_t i = 0; i < parameter.shape.elements(); ++i) {
      const auto at = static_cast<std::size_t>(parameter.offset + i);
      error += std::pow(static_cast<double>(a[at]) - b[at], 2);
      norm += std::pow(static_cast<double>(b[at]), 2);
    }
    const double relative = error == 0 ? 0 : std::sqrt(error / norm);
    if (!(relative <= worst.relative)) worst = {relative, parameter.name};
  }
  return worst;
}

}  // namespace headroom
