// The loss where ranks divide the vocabulary: what a rank does with a chunk of all ranks' tokens and its own
// slice of the words. Messages between the steps are vocabulary_loss's business (src/parallel).
//
//   place       the rank's own tokens of a chunk, to where those of all ranks are gathered
//   statistics  Z <- X W^T over the rank's words; of each token the largest, the sums, the label's logit
//   judge       of its own tokens: the loss, and the rule that turns their logits into gradients
//   gradients   dZ in place of Z; dX <- dZ W, this rank's part of the sum; dW <- dW + dZ^T X
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "headroom/core/kernel_family.h"
#include "headroom/core/stream.h"
#include "headroom/loss.h"
#include "loss/labels.h"

namespace headroom {

// Of a token over the words of one rank. Of no words: -inf and zeros.
struct TokenStatistics {
  float max;
  float sum;        // of e^(logit - max)
  float logit_sum;  // of the logits
  float target;     // the label's logit; 0 where the label is not among the words
};

// dZ <- factor * e^(Z - max) - smoothing, at the label less the share; both through the softcap.
struct TokenRule {
  float max;
  float factor;
  float smoothing;
  float share;
};
inline constexpr std::int64_t kTokenFloats = 4;  // of either
static_assert(sizeof(TokenStatistics) == kTokenFloats * sizeof(float) &&
              sizeof(TokenRule) == kTokenFloats * sizeof(float));

// A rank's part of the loss. Tokens are the rank's own, the vocabulary is whole.
struct SliceCall {
  LossProblem problem;  // a mean over the rank's own labels, without shift or weights of tokens
  VocabularySlice slice;
  std::int64_t ranks = 1;
  std::int64_t chunk_tokens = 0;  // the most of all ranks in one chunk
  TensorView hidden;              // [tokens, hidden]
  TensorView labels;              // [tokens] i32
  TensorView weight;              // [words, hidden]
  TensorView loss;                // [1] f32
  TensorView loss_gradient;       // [1] f32; empty in forward, and so are those below
  TensorView hidden_gradient;     // [tokens, hidden]
  TensorView weight_gradient;     // [words, hidden] f32, added to
};

[[nodiscard]] inline LossLabels own_labels(const SliceCall& call) {
  return {.labels = call.labels.data<std::int32_t>(),
          .weights = nullptr,
          .sequence = 0,
          .ignore_index = call.problem.ignore_index};
}

// Tokens of a chunk, one rank's after another's.
struct SliceChunk {
  TensorView hidden;           // [count, hidden]
  TensorView labels;           // [count] i32; -1: counts for nothing
  TensorView statistics;       // [count, kTokenFloats] f32
  TensorView rules;            // [count, kTokenFloats] f32
  TensorView hidden_gradient;  // [count, hidden] f32

  [[nodiscard]] std::int64_t count() const { return labels.extent(0); }
};

struct SliceRow {
  std::string_view name;
  Support (*supports)(const SliceCall&, const DeviceDescription&);
  std::int64_t (*workspace_bytes)(const SliceCall&, const DeviceDescription&, Pass);
  // Before the first chunk: counts the rank's labels.
  void (*begin)(const SliceCall&, Pass, TensorView workspace, const Stream&);
  // Of the rank's tokens first, first + 1, ...: hidden states and labels of `to`.
  void (*place)(const SliceCall&, std::int64_t first, const SliceChunk& to, const Stream&);
  // The logits stay in the workspace for gradients() of the same chunk.
  void (*statistics)(const SliceCall&, const SliceChunk&, Pass, TensorView workspace, const Stream&);
  // `parts`: the statistics of every rank of the tokens `own`, [ranks, count, kTokenFloats].
  void (*judge)(const SliceCall&, const TensorView& parts, std::int64_t first, const SliceChunk& own, Pass,
                TensorView workspace, const Stream&);
  void (*gradients)(const SliceCall&, const SliceChunk&, TensorView workspace, const Stream&);
  // Gradients of the rank's tokens first, first + 1, ... <- sums, rounded once.
  void (*store)(const SliceCall&, std::int64_t first, const TensorView& sums, const Stream&);
  // After the last chunk: the loss.
  void (*end)(const SliceCall&, Pass, TensorView workspace, const Stream&);
  bool only_when_named = false;
};

[[nodiscard]] const SliceRow& slice_cpu();
[[nodiscard]] const SliceRow& slice_cuda();
[[nodiscard]] std::span<const SliceRow> slice_rows();

}  // namespace headroom
