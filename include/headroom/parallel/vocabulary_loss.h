// Linear cross-entropy over ranks that divide the vocabulary: each has the rows of the weight for its own
// words. Chunk by chunk, the hidden states of all ranks' tokens are gathered and every rank makes the logits
// of its words. The statistics of a token go to the rank that has it, which merges them in the order of the
// ranks, and the rule for its gradients goes back to all. Gradients of hidden states are added over the
// ranks in f32 and rounded once; those of the weight stay where they are made. No rank holds more than a
// chunk's logits of its own words.
#pragma once

#include <cstdint>
#include <vector>

#include "headroom/loss.h"
#include "headroom/memory/context.h"

namespace headroom {

struct VocabularyLoss {
  // This rank's tokens, the whole vocabulary. A mean over the rank's own labels; no shift, no weights of
  // tokens. chunk_tokens counts those of all ranks together, 0: as many as are fast; chunk_vocab is 0.
  LossProblem problem;
  std::vector<std::int64_t> rank_tokens;  // [ranks]
  VocabularySlice slice;                  // this rank's words
};

// As in headroom/loss.h, but that weight and weight_gradient have the rows of the rank's words alone, and
// `saved` is not used. Every rank calls them at the same place. Both throw with one rank.
void vocabulary_loss_forward(Context& context, const VocabularyLoss& loss, const LossForward& views);
void vocabulary_loss_backward(Context& context, const VocabularyLoss& loss, const LossBackward& views);

// The largest chunk with which backward adds at most budget_bytes, in steps of a half from what is fast; too
// small a budget gets the smallest chunk there is.
[[nodiscard]] std::int64_t fit_vocabulary_chunk(const VocabularyLoss& loss, const DeviceDescription& device,
                                                std::int64_t budget_bytes);

}  // namespace headroom
