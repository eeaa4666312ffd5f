// Linear cross-entropy: hidden x weight^T -> loss and its gradients, with the tokens x vocabulary logits
// never held whole. Chunk sizes are inputs; the planner sets them from the budget.
#pragma once

#include <cstdint>

#include "headroom/core/kernel_family.h"

namespace headroom {

enum class Reduction : std::uint8_t { mean, sum, none };

struct LossProblem {
  std::int64_t tokens = 0;
  std::int64_t hidden = 0;
  std::int64_t vocab = 0;
  DType dtype = DType::f32;  // of hidden, weight and their gradients; statistics are f32
  Reduction reduction = Reduction::mean;
  std::int32_t ignore_index = -100;  // labels of this value count for nothing
  bool shift = false;                // token i is judged by label i + 1, the last of a sequence by none
  std::int64_t sequence_tokens = 0;  // with shift: tokens per sequence; 0: all are one
  float label_smoothing = 0;         // in [0, 1)
  float z_loss = 0;                  // weight of lse^2
  float softcap = 0;                 // logits <- softcap * tanh(logits / softcap); 0: off
  bool token_weights = false;        // each token's loss is multiplied by a weight
  std::int64_t chunk_tokens = 0;     // 0: all at once
  std::int64_t chunk_vocab = 0;
};

struct LossForward {
  TensorView hidden;         // [tokens, hidden]
  TensorView weight;         // [vocab, hidden]
  TensorView labels;         // [tokens] i32
  TensorView token_weights;  // [tokens] f32, where the problem has them
  TensorView loss;           // [1] f32, or [tokens] without reduction
  TensorView lse;            // [tokens] f32, kept for backward
};

struct LossBackward {
  LossForward forward;         // its inputs and its results
  TensorView loss_gradient;    // [1] f32, or [tokens] without reduction
  TensorView hidden_gradient;  // [tokens, hidden]
  TensorView weight_gradient;  // [vocab, hidden], added to
};

using LossImplementation = Implementation<LossProblem, LossForward, LossBackward>;

// Throws with the value that is wrong.
void validate(const LossProblem& problem);

// Arithmetic of the pass: one product forward, two more backward.
[[nodiscard]] double flops(const LossProblem& problem, Pass pass);

// What holding the logits whole would take, in the problem's dtype: 37.09 GiB at 131,072 x 151,936 in bf16.
[[nodiscard]] std::int64_t logits_bytes(const LossProblem& problem);

}  // namespace headroom
