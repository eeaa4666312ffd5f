// A decoder's step, written out: embedding, layers, loss, and the same way back. Ordinary code over a
// Context: on a phantom it is the plan, on a device it is the run. What layers keep for backward is the
// strategy's business; whatever they keep, the gradients have the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "headroom/attention.h"
#include "headroom/memory/context.h"
#include "headroom/model/config.h"
#include "headroom/model/parameters.h"
#include "headroom/model/shards.h"
#include "headroom/model/strategy.h"
#include "headroom/ops/rope_frequencies.h"
#include "headroom/parallel/parallel_schedule.h"

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
// Throws where an update has more than 2^40 tokens: a plan tries out every divisor of the batch.
void check_plannable(const StepSizes& sizes);

struct StepBatch {
  TensorView tokens;     // [batch, seq] i32, as the rank's pieces follow each other
  TensorView labels;     // [batch, seq] i32: what a token is to predict; -100: nothing
  TensorView positions;  // [batch, seq] i32
  TensorView
      document_starts;  // [batch, max_documents + 1] i32, of whole sequences, where sizes have documents
};

// Flat buffers of the parameter table.
struct StepBuffers {
  const Tensor& weights;            // in the strategy's compute dtype
  const Tensor& gradients;          // in the gradient dtype of the strategy's state, added to
  bool gradients_are_zero = false;  // then products need not read them; the bits are the same
};

class Decoder {
 public:
  // `mask` holds in every layer. In a layer with a sliding window that window holds too. Throws where the
  // strategy's ranks cannot divide a sequence, or its groups the batch. With `sampled_rank`, schedules are
  // samples: the decoder is good for rehearsing the memory of that rank and cannot run.
  Decoder(ModelConfig config, const Strategy& strategy, const StepSizes& sizes, const Mask& mask,
          std::optional<int> sampled_rank = {});

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const ParameterTable& parameters() const { return parameters_; }
  // How ranks divide the flat buffers that the strategy's sharding divides.
  [[nodiscard]] const Shards& shards() const { return shards_; }
  [[nodiscard]] const Strategy& strategy() const { return strategy_; }
  [[nodiscard]] const StepSizes& sizes() const { return sizes_; }
  // Which tokens of a sequence each of the strategy's ranks has.
  [[nodiscard]] const Partition& partition() const { return partition_; }
  // The sizes of a group's share of the batch.
  [[nodiscard]] StepSizes group_sizes() const;
  // The first sequence of the batch that is one of the rank's group.
  [[nodiscard]] std::int64_t first_sequence(const Ranks& ranks) const;
  // The pieces that a rank has of every sequence of its group. Throws where there are not as many ranks as
  // the strategy has.
  [[nodiscard]] const std::vector<Piece>& pieces(const Ranks& ranks) const;
  [[nodiscard]] RankSizes rank_sizes(const Ranks& ranks) const;
  // The tokens of a micro-step that each rank has, [ranks].
  [[nodiscard]] std::vector<std::int64_t> rank_tokens() const;
  // Which keys a layer's queries see.
  [[nodiscard]] Mask layer_mask(std::int64_t layer) const;
  // How ranks divide a layer's attention; null where they do not. Documents may begin anywhere in a batch:
  // the schedule is good for all of them.
  [[nodiscard]] const ParallelSchedule* schedule(std::int64_t layer) const;

  // gradients <- gradients + loss_gradient * d(mean loss); loss [1] f32, loss_gradient [1] f32.
  void train(Context& context, const StepBatch& batch, const StepBuffers& buffers, const TensorView& loss,
             const TensorView& loss_gradient) const;

  // The mean loss alone. `inspect` is called with every layer's result and its name, to find where numbers go
  // wrong; a phantom does not call it.
  using Inspect = std::function<void(std::string_view name, const Tensor& result)>;
  void evaluate(Context& context, const StepBatch& batch, const Tensor& weights, const TensorView& loss,
                const Inspect& inspect = {}) const;

 private:
  void divide_sequences(std::optional<int> sampled_rank);

  ModelConfig config_;
  ParameterTable parameters_;
  Shards shards_;
  Strategy strategy_;
  StepSizes sizes_;
  Mask mask_;
  RopeFrequencies rope_;
  Partition partition_;
  std::array<std::optional<ParallelSchedule>, 2> schedules_;  // [AttentionKind], of those that layers have
};

}  // namespace headroom
