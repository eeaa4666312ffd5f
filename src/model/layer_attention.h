// Attention of a layer, on its activations: over whole sequences, or the part of a rank where ranks divide
// them.
#pragma once

#include "headroom/model/decoder.h"
#include "headroom/parallel/ways.h"
#include "model/activations.h"

namespace headroom {

struct LayerAttention {
  AttentionProblem problem;                      // of whole sequences
  const ParallelSchedule* over_ranks = nullptr;  // how ranks divide them; null: they do not
  TensorView document_starts{};                  // [batch, max_documents + 1] i32, where there are documents
};

// The attention of whole sequences in a layer that has this mask.
[[nodiscard]] AttentionProblem whole_attention(const ModelConfig& config, DType dtype, const StepSizes& sizes,
                                               const Mask& mask);

// output, lse <- attention(query, key, value)
void attention_forward(Context& context, const LayerAttention& attention, const LayerActivations& acts);

// Of the activations of these names.
struct AttentionGradients {
  TensorView output;
  TensorView query;
  TensorView key;
  TensorView value;
};
// The gradients of query, key and value <- those that the output's has.
void attention_backward(Context& context, const LayerAttention& attention, const LayerActivations& acts,
                        const AttentionGradients& gradients);

}  // namespace headroom
