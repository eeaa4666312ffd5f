// Linear cross-entropy: hidden x weight^T -> loss and its gradients, with the tokens x vocabulary logits
// never held whole. Chunk sizes are inputs; the planner sets them from the budget. The bits do not depend on
// them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "headroom/core/kernel_family.h"
#include "headroom/memory/context.h"

namespace headroom {

enum class Reduction : std::uint8_t { mean, sum, none };

struct LossProblem {
  std::int64_t tokens = 0;
  std::int64_t hidden = 0;
  std::int64_t vocab = 0;
  DType dtype = DType::f32;  // of hidden, its gradient and weight; statistics and dWeight are f32
  Reduction reduction = Reduction::mean;  // over the labels that count, by their weights
  std::int32_t ignore_index = -100;       // labels of this value count for nothing
  bool shift = false;                     // token i is judged by label i + 1, the last of a sequence by none
  std::int64_t sequence_tokens = 0;       // with shift: tokens per sequence; 0: all are one
  float label_smoothing = 0;              // in [0, 1)
  float z_loss = 0;                       // weight of lse^2
  float softcap = 0;                      // logits <- softcap * tanh(logits / softcap); 0: off
  bool token_weights = false;             // each token's loss is multiplied by a weight
  std::int64_t chunk_tokens = 0;          // 0: the implementation's own
  std::int64_t chunk_vocab = 0;           // 0: all of it
};

// All dense. Labels are token numbers, 0 to vocab - 1, or ignore_index.
struct LossForward {
  TensorView hidden;         // [tokens, hidden]
  TensorView weight;         // [vocab, hidden]
  TensorView labels;         // [tokens] i32
  TensorView token_weights;  // [tokens] f32, where the problem has them
  TensorView loss;           // [1] f32, or [tokens] without reduction
  TensorView saved;          // [saved_bytes] u8: what the implementation keeps for its backward
};

// backward makes the loss on its way, so a training step calls it alone; only the implementations that keep
// logits (standard, chunked) need their forward first.
struct LossBackward {
  LossForward forward;         // its inputs; the loss is written again
  TensorView loss_gradient;    // [1] f32, or [tokens] without reduction
  TensorView hidden_gradient;  // [tokens, hidden]
  TensorView weight_gradient;  // [vocab, hidden] f32, added to
};

// Words first, first + 1, ... of a vocabulary that ranks divide; there may be none.
struct VocabularySlice {
  std::int64_t first = 0;
  std::int64_t words = 0;

  bool operator==(const VocabularySlice&) const = default;
};

using LossImplementation = Implementation<LossProblem, LossForward, LossBackward>;

// Fastest first, the reference last:
//   fused              chunks of tokens; loss and gradients in one visit, nothing is kept
//   fused-cuda         the same on a GPU, logits in the problem's dtype
//   chunked-recompute  4,096 tokens at a time, forward, then everything again backward
//   chunked            the same loop as eager autograd runs it: every chunk's logits are kept for backward
//   standard           all logits at once
//   reference          fp64
[[nodiscard]] std::span<const LossImplementation> loss_implementations();

// Validates, picks the implementation (or takes the pinned one), takes its workspace from the Context and
// runs it.
void loss_forward(Context& context, const LossProblem& problem, const LossForward& views,
                  std::string_view pinned = {});
void loss_backward(Context& context, const LossProblem& problem, const LossBackward& views,
                   std::string_view pinned = {});

// Sizes of chunks, 0: all at once.
struct LossChunks {
  std::int64_t tokens = 0;
  std::int64_t vocab = 0;

  bool operator==(const LossChunks&) const = default;
};

// The largest chunks with which fused backward adds at most budget_bytes: whole rows of logits while at least
// 96 tokens of them fit (fewer would multiply slowly), then parts of the vocabulary. Too small a budget gets
// the smallest chunks there are.
[[nodiscard]] LossChunks fit_loss_chunks(const LossProblem& problem, const DeviceDescription& device,
                                         std::int64_t budget_bytes);

// Throws with the value that is wrong.
void validate(const LossProblem& problem);

// Arithmetic of the pass: one product forward, two more backward.
[[nodiscard]] double flops(const LossProblem& problem, Pass pass);

// What holding the logits whole would take, in the problem's dtype: 37.09 GiB at 131,072 x 151,936 in bf16.
[[nodiscard]] std::int64_t logits_bytes(const LossProblem& problem);

// The rule that training scripts follow where nobody plans: standard while the logits, in the problem's
// dtype, take at most whole_bytes, else chunked, chunk_tokens at a time.
struct LossMethod {
  std::string_view implementation;
  std::int64_t chunk_tokens = 0;

  bool operator==(const LossMethod&) const = default;
};
[[nodiscard]] LossMethod loss_method_by_size(const LossProblem& problem, std::int64_t whole_bytes,
                                             std::int64_t chunk_tokens);

}  // namespace headroom
