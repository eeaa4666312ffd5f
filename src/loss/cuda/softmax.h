// What the loss does on a GPU besides products.
#pragma once

#include "headroom/core/stream.h"
#include "loss/labels.h"

namespace headroom::cuda {

// What the tokens' weights are divided by, made by loss_divisor, and their losses, which loss_total adds up.
struct LossScratch {
  double* divisor = nullptr;  // [1]
  double* losses = nullptr;   // [tokens]
};

void loss_divisor(const LossProblem& problem, const LossLabels& labels, const LossScratch& scratch,
                  const Stream& stream);

// The losses of the tokens [first, first + rows of the logits), and the gradients of their logits in place of
// the logits; without loss_gradient the losses alone. A label outside of the vocabulary makes them NaN: the
// host checks labels where it makes them.
void softmax_loss(const LossProblem& problem, const LossLabels& labels, const LossScratch& scratch,
                  const TensorView& logits, std::int64_t first, const TensorView& loss_gradient,
                  const Stream& stream);

void loss_total(const LossProblem& problem, const LossScratch& scratch, const TensorView& loss,
                const Stream& stream);

}  // namespace headroom::cuda
