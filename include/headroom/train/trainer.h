// Training as named phases over one Context: load, micro-step, update, evaluate, save. The trainer holds what
// lives as long as the run; a rehearsal runs the same functions on a phantom, once each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "headroom/memory/context.h"
#include "headroom/memory/staging.h"
#include "headroom/model/decoder.h"
#include "headroom/train/checkpoint.h"
#include "headroom/train/data.h"

namespace headroom {

enum class OptimizerKind : std::uint8_t {
  adamw,
  none  // forward and backward alone: no state, no update
};

struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::adamw;
  double learning_rate = 3e-4;  // after warm-up
  double final_fraction = 0.1;  // of it, in the last step
  std::int64_t warmup_steps = 0;
  std::int64_t steps = 1;  // of the whole run
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // of matrices; norm weights have none
  double max_norm = 1.0;      // of the gradients; infinity clips nothing
};

// Throws with the value that is wrong.
void validate(const OptimizerSettings& settings);

// Of step 1, 2, ...: rises in a line to its height at the end of warm-up, then falls as half a cosine that
// ends with the last step.
[[nodiscard]] double learning_rate(const OptimizerSettings& settings, std::int64_t step);

// The loss of a batch, or of several together: summed, so that batches of different numbers of labels add up
// to the mean over all their labels.
struct LossSum {
  double sum = 0;           // over the labels
  std::int64_t labels = 0;  // tokens that are to predict something

  LossSum& operator+=(const LossSum& other) {
    sum += other.sum;
    labels += other.labels;
    return *this;
  }
  // Nothing where there is no label.
  [[nodiscard]] std::optional<double> mean() const {
    if (labels == 0) return std::nullopt;
    return sum / static_cast<double>(labels);
  }
};

class Trainer {
 public:
  Trainer(Decoder decoder, const OptimizerSettings& optimizer);

  [[nodiscard]] const Decoder& decoder() const { return decoder_; }

  // What the host does with the run's tensors, which it reads and writes through the Staging.
  using HostWork = std::function<void(Staging& staging)>;

  // Phase load: takes what lives as long as the run, zeroes it, and calls body() to fill buffers().
  void load(Context& context, const HostWork& body);
  // Random matrices of deviation 1 / sqrt(hidden), norms 1. To be called in load's body.
  void initialize(Context& context, std::uint64_t seed) const;
  // The tensors that a checkpoint holds. Valid after load, as long as the trainer lives.
  [[nodiscard]] TrainBuffers buffers() const;
  // The gradients of the sum of the losses since the last update, divided by the tokens of one batch.
  [[nodiscard]] const Tensor& gradients() const { return gradients_; }
  // What gradients() are multiplied by to be those of the mean loss over this many labels.
  [[nodiscard]] double gradient_scale(std::int64_t labels) const;

  // One batch: fill(batch) writes its samples, all of them also where ranks divide them. Adds to the
  // gradients and returns the loss over all ranks. A batch without a label is passed over: nothing is
  // computed, nothing changes. A rehearsal counts every token.
  using FillBatch = std::function<void(const Samples& batch)>;
  LossSum micro_step(Context& context, const FillBatch& fill);

  // Ends a step of so many labels, at least one: adds the gradients of all ranks up, makes them those of the
  // mean loss over all labels, clips, updates the weights unless the norm is not finite, and clears the
  // gradients. Returns the norm. So ranks that begin with the same weights keep them the same.
  double update(Context& context, std::int64_t step, std::int64_t labels);

  // Phase save: body() reads buffers() and gradients(), to write a checkpoint or to look at them.
  void save(Context& context, const HostWork& body);
  // Whether ranks divide what a checkpoint holds. Then all of them call save_divided, and not save, for one.
  [[nodiscard]] bool divides_state() const { return decoder_.shards().divided(); }
  // Phase gather: rank 0 calls body() to write a checkpoint of what all ranks have, to be given to
  // write_checkpoint().
  using WriteDivided = std::function<void(Staging& staging, StateGather& gather)>;
  void save_divided(Context& context, const WriteDivided& body);

  // The loss of a batch; one without a label is passed over. `inspect` is called with every layer's result.
  using Inspect = std::function<void(std::string_view name, const Tensor& result, Staging& staging)>;
  LossSum evaluate(Context& context, const FillBatch& fill, const Inspect& inspect = {});

 private:
  [[nodiscard]] Tensor take(Context& context, std::string_view name, Category category, DType dtype,
                            const Shape& shape, Space space = Space::device) const;
  // The rank's part of a batch, from the host's buffers to the device's, for the rest of the phase.
  struct DeviceBatch {
    Tensor tokens, labels, positions, document_starts;

    [[nodiscard]] StepBatch views() const;
  };
  [[nodiscard]] DeviceBatch send(Context& context) const;
  // The largest transfer is a flat tensor of the widest dtype of the state.
  [[nodiscard]] std::int64_t largest_transfer_bytes() const;
  // The labels of the host's batch, and those of this rank's pieces.
  struct BatchLabels {
    std::int64_t all = 0;
    std::int64_t own = 0;
  };
  // Fills the host's buffers.
  [[nodiscard]] BatchLabels fill_host_batch(Context& context, const FillBatch& fill) const;
  // body(begin in the rank's tensors, begin in the host's batch, tokens) for each of the rank's pieces.
  template <class Body>
  void for_each_own_part(const Context& context, const Body& body) const;
  static void check_words(const Samples& batch, std::int64_t vocab);
  [[nodiscard]] static LossSum sum_over_ranks(Context& context, const LossSum& mine);
  // A value that the device made, on the host, which waits for main to have made it.
  double read_back(Context& context, const Tensor& value) const;

  Decoder decoder_;
  OptimizerSettings optimizer_;
  Tensor weights_;    // flat, compute dtype
  Tensor gradients_;  // flat; their dtype and what else there is is the state's
  bool gradients_are_zero_ = false;
  Tensor master_;           // flat f32; this and the moments are on the host where the strategy says so, and
                            // have the rank's slices alone where ranks divide them
  Tensor first_moment_;     // flat
  Tensor second_moment_;    // flat
  Tensor first_exponents_;  // [elements / kMomentBlock], of moments of 8 bits
  Tensor second_exponents_;
  std::vector<ShardSlice> slices_;  // of the rank: what it updates
  DeviceBatch host_batch_;          // whole sequences
  Tensor host_value_;               // [1] f32
};

}  // namespace headroom
