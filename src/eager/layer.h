// A decoder layer as transformers' modules run it under autograd: what each operator makes, what its node
// saves, what Python lets go of and when. Widths are in elements, H = hidden, of tokens = batch x seq.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "eager/attention.h"
#include "eager/program.h"
#include "headroom/model/config.h"

namespace headroom {

// What every layer of a step sees.
struct EagerStepShared {
  EagerProgram& program;
  const ModelConfig& config;
  StepSizes sizes;
  EagerOptions options;
  std::vector<Tensor>& gradients;  // the parameters' .grad, as they come

  [[nodiscard]] std::int64_t tokens() const { return sizes.batch * sizes.context; }
  [[nodiscard]] Tensor make(std::string_view name, std::int64_t width) const {
    return program.make(name, Category::activations, options.dtype, {tokens(), width});
  }
  [[nodiscard]] Tensor hidden(std::string_view name) const { return make(name, config.hidden); }
  // A weight's gradient is stolen by its .grad: no copy, unless autocast made the weight's own copy.
  void weight_gradient(std::string_view name, std::int64_t outputs, std::int64_t inputs) const {
    program.product_in_backward();
    gradients.push_back(
        as_parameter(program.make(name, Category::gradients, options.dtype, {outputs, inputs})));
  }
  // A gradient in the dtype of its parameter.
  [[nodiscard]] Tensor as_parameter(Tensor gradient) const {
    if (!options.autocast()) return gradient;
    return program.make("gradient.to(f32)", Category::gradients, DType::f32, gradient.view().shape());
  }
};

// RMSNorm: x32 = x.float(); x32 * rsqrt(x32.pow(2).mean(-1) + eps); weight * that.to(dtype).
class EagerRmsNorm {
 public:
  EagerRmsNorm(const EagerStepShared& shared, std::int64_t rows, std::int64_t width)
      : shared_(shared), rows_(rows), width_(width) {}

  // With `saves` false, what torch.no_grad() leaves: the result alone. `input` is given where nobody but the
  // norm's graph holds it; in f32 that saves it as it is.
  [[nodiscard]] Tensor forward(bool saves, Tensor input = {});
  // From the result's gradient to the input's.
  [[nodiscard]] Tensor backward(Tensor gradient);

 private:
  [[nodiscard]] bool widens() const { return shared_.options.dtype != DType::f32; }
  [[nodiscard]] Tensor wide(std::string_view name) const {
    return shared_.program.make(name, Category::activations, DType::f32, {rows_, width_});
  }
  [[nodiscard]] Tensor narrow(std::string_view name) const {
    return shared_.program.make(name, Category::activations, shared_.options.dtype, {rows_, width_});
  }
  [[nodiscard]] Tensor row(std::string_view name) const {
    return shared_.program.make(name, Category::activations, DType::f32, {rows_});
  }
  [[nodiscard]] Tensor partial_sums() const;

  const EagerStepShared& shared_;
  std::int64_t rows_;
  std::int64_t width_;
  Tensor input_, rstd_, normed_;
};

class EagerLayer {
 public:
  EagerLayer(const EagerStepShared& shared, const LayerSpec& spec);

  // How forward runs: under no_grad as checkpoint() does the first time, saving for backward, or saving and
  // stopping with the last tensor that backward needs, as checkpoint() does the second time.
  enum class Mode : std::uint8_t { without_graph, with_graph, again };

  // From the layer's input, which the caller holds, to its output; nothing in mode `again`.
  [[nodiscard]] Tensor forward(Mode mode);
  // Beside the output's gradient, which the caller holds and which becomes the input's in place.
  void backward();
  // Whether the graph holds the layer's input: a norm saves it where it needs no wider copy of it.
  [[nodiscard]] bool saves_input() const { return shared_.options.dtype == DType::f32; }

 private:
  [[nodiscard]] Tensor rotate(std::string_view name, std::int64_t width) const;
  [[nodiscard]] Tensor rotate_backward(Tensor gradient, std::int64_t width) const;
  [[nodiscard]] Tensor attend(bool saves);
  [[nodiscard]] QkvGradients attend_backward();
  [[nodiscard]] Tensor head_norm_backward(std::optional<EagerRmsNorm>& norm, Tensor gradient,
                                          std::int64_t width) const;

  const EagerStepShared& shared_;
  std::int64_t queries_;  // heads_q x head_dim
  std::int64_t keys_;
  EagerRmsNorm norm1_, norm2_;
  std::optional<EagerRmsNorm> query_norm_, key_norm_;
  std::optional<SdpaAttention> sdpa_;
  std::optional<NaiveAttention> naive_;
  Tensor normed1_, query_, key_, value_, attended_;              // saved by the projections and by attention
  Tensor residual_, normed2_, gate_, activated_, up_, product_;  // by the second norm and the MLP
};

}  // namespace headroom
