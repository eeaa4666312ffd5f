// Strategy: how a training step trades memory for time. A plain value: the planner searches it, flags pin
// parts of it, a rehearsal says to the byte what it takes.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>

#include "headroom/core/dtype.h"

namespace headroom {

// In what precision the training state is kept: weights, gradients, moments. It is the user's choice: no plan
// changes it.
enum class StatePrecision : std::uint8_t {
  f32,       // f32 gradients and moments; where weights are 16-bit, f32 master weights beside them
  bf16,      // bf16 weights without masters, bf16 gradients and moments
  eight_bit  // the same with moments of 8 bits
};
[[nodiscard]] std::string_view name(StatePrecision state);  // f32, bf16, 8bit
[[nodiscard]] StatePrecision parse_state(std::string_view text);
// Throws where weights of that dtype cannot be trained with that state.
void check_state(StatePrecision state, DType weights);

// Dtypes of flat buffers. Moments of 8 bits have exponents beside them.
[[nodiscard]] inline DType gradient_dtype(StatePrecision state) {
  return state == StatePrecision::f32 ? DType::f32 : DType::bf16;
}
[[nodiscard]] inline DType moment_dtype(StatePrecision state) {
  return state == StatePrecision::eight_bit ? DType::u8 : gradient_dtype(state);
}
[[nodiscard]] inline bool has_master(StatePrecision state, DType weights) {
  return state == StatePrecision::f32 && weights != DType::f32;
}

// Which part of the training state ranks divide. What they do not divide, every rank has whole.
enum class Sharding : std::uint8_t {
  none,
  optimizer,  // moments and master weights: a rank updates its slice of the weights, then all have the slices
  full        // weights and gradients too: a layer's weights are gathered where they are needed
};
[[nodiscard]] std::string_view name(Sharding sharding);  // none, optimizer, full
[[nodiscard]] Sharding parse_sharding(std::string_view text);

// What ranks divide of the loss.
enum class LossRanks : std::uint8_t {
  tokens,     // each has the logits of its own tokens over all words, and needs the whole output weight
  vocabulary  // each has its own words of all ranks' tokens, and needs those rows of the output weight
};
[[nodiscard]] std::string_view name(LossRanks ranks);  // tokens, vocabulary
[[nodiscard]] LossRanks parse_loss_ranks(std::string_view text);

// Layers are counted from the first: so many of the first kind, then of the second, ...; the counts add up to
// the model's layers. What a kind does not keep is recomputed in backward.
struct LayerPolicy {
  std::int64_t keep_all = 0;        // every activation stays
  std::int64_t keep_attention = 0;  // attention output and LSE stay, the rest is recomputed
  std::int64_t recompute = 0;       // only layer inputs stay
  std::int64_t offload = 0;         // layer inputs move to host memory and come back in time
  std::int64_t input_every = 1;     // of the recomputed layers, every how many-th keeps its input

  auto operator<=>(const LayerPolicy&) const = default;
};

struct Strategy {
  LayerPolicy layers;
  std::int64_t loss_chunk_tokens = 0;  // 0: as many as the loss finds fast; of all ranks together where they
                                       // divide the vocabulary
  std::int64_t loss_chunk_vocab = 0;   // 0: all at once
  std::int64_t mlp_tile_tokens = 0;    // 0: all at once
  bool projections_again = false;  // the queries and keys before their norm, and what they are made of, are
                                   // made again after attention's backward instead of waiting for it
  std::int64_t accumulation = 1;   // micro-steps per update
  bool offload_optimizer = false;  // moments and master weights live in host memory
  std::int64_t ring_ranks = 1;     // ranks in a row that divide every sequence
  std::int64_t data_ranks = 1;     // groups of so many ranks; each has its own sequences of a batch
  std::int64_t head_group = 1;     // of them, how many in a row divide the heads of attention: 1 is a ring,
                                   // all of them are heads alone (headroom/parallel/parallel_schedule.h)
  Sharding sharding = Sharding::none;
  LossRanks loss_ranks = LossRanks::tokens;
  DType compute_dtype = DType::f32;  // of activations and of the weights that kernels read
  StatePrecision state = StatePrecision::f32;

  // Ranks that take part in a step.
  [[nodiscard]] std::int64_t ranks() const { return ring_ranks * data_ranks; }

  auto operator<=>(const Strategy&) const = default;
};

// Throws with the value that is wrong for a model of that many layers.
void validate(const Strategy& strategy, std::int64_t layers);

}  // namespace headroom
