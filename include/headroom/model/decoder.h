// A decoder's step, written out: embedding, layers, loss, and the same way back. Ordinary code over a
// Context: on a phantom it is the plan, on a device it is the run. What layers keep for backward is the
// strategy's business; whatever they keep, the gradients have the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "headroom/attention.h"
#include "headroom/memory/context.h"
#include "headroom/model/config.h"
#include "headroom/model/parameters.h"
#include "headroom/model/strategy.h"
#include "headroom/ops/rope_frequencies.h"

namespace headroom {

// The whole batch of a step.
struct StepSizes {
  std::int64_t batch = 1;          // sequences
  std::int64_t context = 0;        // tokens of each
  std::int64_t max_documents = 0;  // packed into a sequence; 0: it is one document

  bool operator==(const StepSizes&) const = default;
};

// The sizes of a rank's tensors.
struct RankSizes {
  std::int64_t batch = 1;
  std::int64_t seq = 0;  // tokens of each sequence that are this rank's
  std::int64_t max_documents = 0;

  [[nodiscard]] std::int64_t tokens() const { return batch * seq; }
};
// Returns the sizes of the whole batch: no batch is divided over ranks yet.
[[nodiscard]] RankSizes rank_sizes(const StepSizes& sizes);
// Throws where an update has more than 2^40 tokens: a plan tries out every divisor of the batch.
void check_plannable(const StepSizes& sizes);

struct StepBatch {
  TensorView tokens;           // [batch, seq] i32
  TensorView labels;           // [batch, seq] i32: what a token is to predict; -100: nothing
  TensorView positions;        // [batch, seq] i32
  TensorView document_starts;  // [batch, max_documents + 1] i32, where sizes have documents
};

// Flat buffers of the parameter table.
struct StepBuffers {
  TensorView weights;    // in the strategy's compute dtype
  TensorView gradients;  // in the gradient dtype of the strategy's state, added to
};

class Decoder {
 public:
  // `mask` holds in every layer. In a layer with a sliding window that window holds too.
  Decoder(ModelConfig config, const Strategy& strategy, const StepSizes& sizes, const Mask& mask);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const ParameterTable& parameters() const { return parameters_; }
  [[nodiscard]] const Strategy& strategy() const { return strategy_; }
  [[nodiscard]] const StepSizes& sizes() const { return sizes_; }
  [[nodiscard]] RankSizes rank_sizes() const { return headroom::rank_sizes(sizes_); }
  // Which keys a layer's queries see.
  [[nodiscard]] Mask layer_mask(std::int64_t layer) const;

  // gradients <- gradients + loss_gradient * d(mean loss); loss [1] f32, loss_gradient [1] f32.
  void train(Context& context, const StepBatch& batch, const StepBuffers& buffers, const TensorView& loss,
             const TensorView& loss_gradient) const;

  // The mean loss alone. `inspect` is called with every layer's result and its name, to find where numbers go
  // wrong; a phantom does not call it.
  using Inspect = std::function<void(std::string_view name, const Tensor& result)>;
  void evaluate(Context& context, const StepBatch& batch, const TensorView& weights, const TensorView& loss,
                const Inspect& inspect = {}) const;

 private:
  ModelConfig config_;
  ParameterTable parameters_;
  Strategy strategy_;
  StepSizes sizes_;
  Mask mask_;
  RopeFrequencies rope_;
};

}  // namespace headroom
