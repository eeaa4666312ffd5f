// The loss of a language model in eager PyTorch: F.cross_entropy(hidden @ weight.T, labels), at once or over
// chunks of tokens, with or without making a chunk's logits again in backward.
#pragma once

#include <cstdint>
#include <vector>

#include "eager/program.h"
#include "headroom/eager.h"

namespace headroom {

class EagerLossProgram {
 public:
  EagerLossProgram(EagerProgram& program, const EagerLossProblem& problem, const EagerOptions& options);

  void forward();
  // The gradient of the hidden states; the weight's is the program's until taken.
  [[nodiscard]] Tensor backward();
  [[nodiscard]] Tensor take_weight_gradient() { return std::move(weight_gradient_); }

 private:
  [[nodiscard]] std::int64_t tokens_of(std::int64_t chunk) const;
  [[nodiscard]] Tensor logits(std::string_view name, DType dtype, std::int64_t tokens) const {
    return program_.make(name, Category::logits, dtype, {tokens, problem_.vocab});
  }
  // F.cross_entropy(logits) of so many tokens: the log-probabilities, which autograd saves.
  [[nodiscard]] Tensor log_probabilities(std::int64_t tokens);
  // From the saved log-probabilities to the gradient of the product's result.
  [[nodiscard]] Tensor logits_gradient(Tensor log_probabilities, std::int64_t tokens) const;
  void add_weight_gradient(Tensor fresh);
  void backward_chunk(std::int64_t chunk);

  EagerProgram& program_;
  EagerLossProblem problem_;
  EagerOptions options_;
  std::int64_t chunks_ = 1;  // that are played
  std::int64_t last_tokens_ = 0;
  std::vector<Tensor> saved_;  // [chunks] log-probabilities
  Tensor weight_gradient_, hidden_gradient_;
  bool weight_gradient_summed_ = false;
};

}  // namespace headroom
