// What the loss over a slice of the vocabulary does on a GPU besides products; see loss/slice.h.
#pragma once

#include "headroom/core/stream.h"
#include "loss/cuda/softmax.h"
#include "loss/slice.h"

namespace headroom::cuda {

void place_labels(const LossLabels& labels, std::int64_t first, const TensorView& placed,
                  const Stream& stream);
// logits: [count, words]
void slice_statistics(const SliceCall& call, const SliceChunk& chunk, const TensorView& logits,
                      const Stream& stream);
void slice_judge(const SliceCall& call, const LossLabels& labels, const LossScratch& scratch,
                 const TensorView& parts, std::int64_t first, const SliceChunk& own, Pass pass,
                 const Stream& stream);
// The gradients of the logits in place of the logits.
void slice_gradients(const SliceCall& call, const SliceChunk& chunk, const TensorView& logits,
                     const Stream& stream);

}  // namespace headroom::cuda
