// A problem on the GPU as a sequence of launches, and the workspace they share. Plain C++: a machine without
// CUDA plans the same bytes.
#pragma once

#include "attention/cuda/call.h"
#include "attention/cuda/merge.h"
#include "core/pieces.h"
#include "headroom/attention.h"

namespace headroom::cuda {

// What every row of the table that runs these steps refuses.
[[nodiscard]] Support supports_intervals(const AttentionProblem& problem, const DeviceDescription& device);

[[nodiscard]] std::int64_t interval_workspace_bytes(const AttentionProblem& problem, Pass pass);

// The mask as kernels take it; the pointers are the views'.
[[nodiscard]] MaskRule mask_rule(const AttentionProblem& problem, const AttentionForward& views);

[[nodiscard]] TypedHeadsView heads_view(const TensorView& view);

// f32 sums in the shape of a tensor, or, where there are none, the tensor itself.
[[nodiscard]] TypedHeadsView sums_view(float* sums, const TensorView& tensor);

// Sizes, mask, inputs and results; no lists.
[[nodiscard]] AttentionCall attention_call(const AttentionProblem& problem, const AttentionForward& views);

// The memory of a dilated pattern's lists.
void take_dilated_lists(const AttentionProblem& problem, RowLists& lists, Pieces& pieces);

[[nodiscard]] MergeCall merge_call(const AttentionPartial& into, const AttentionPartial& from);

void forward_steps(const AttentionProblem& problem, const AttentionForward& views,
                   const TensorView& workspace, const IntervalKernels& kernels, const Stream& stream);
void backward_steps(const AttentionProblem& problem, const AttentionBackward& views,
                    const TensorView& workspace, const IntervalKernels& kernels, const Stream& stream);

}  // namespace headroom::cuda
