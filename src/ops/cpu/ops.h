// The small operations on views and a stream: no checks, no allocation, for loops that have taken their
// buffers already. headroom/ops/*.h says what each computes and which shapes it takes; headroom::NAME checks
// them, takes the workspace and calls these.
#pragma once

#include "headroom/core/stream.h"
#include "headroom/ops.h"
#include "ops/cpu/kernels.h"
#include "ops/narrow_state.h"

namespace headroom::cpu {

void rms_norm_forward(const RmsNormForward& views, float epsilon, const Stream& stream);

// The workspace holds parts of the weight's gradient, one per chunk of rows.
void rms_norm_backward(const RmsNormBackward& views, Store x_gradient, const TensorView& workspace,
                       const Stream& stream);

void rope(const TensorView& x, const TensorView& positions, const RopeFrequencies& frequencies, Pass pass,
          const Stream& stream);

void swiglu_forward(const TensorView& gate, const TensorView& up, const TensorView& act,
                    const Stream& stream);
void swiglu_backward(const SwigluBackward& views, const Stream& stream);

// Throws for an id outside of the vocabulary; the two below do not look.
void check_ids(const TensorView& ids, std::int64_t vocabulary);
void embedding_forward(const TensorView& table, const TensorView& ids, const TensorView& x,
                       const Stream& stream);
// The workspace holds the table in f32, where the table is 16-bit.
void embedding_backward(const TensorView& ids, const TensorView& x_gradient, const TensorView& table_gradient,
                        std::int32_t pad_token, const TensorView& workspace, const Stream& stream);

void add(const TensorView& a, const TensorView& b, const TensorView& y, const Stream& stream);
void fill(const TensorView& view, float value, const Stream& stream);
void zero(const TensorView& view, const Stream& stream);
void convert(const TensorView& from, const TensorView& to, const Stream& stream);

// The workspace holds partial sums, one per chunk of elements.
void sum_of_squares(const TensorView& view, const TensorView& result, Store store,
                    const TensorView& workspace, const Stream& stream);
void clip_factor(const ClipFactor& views, const Clipping& clipping);

void adamw(const AdamWViews& views, const AdamWFactors& factors, const Stream& stream);
void adamw_narrow(const NarrowUpdate& update, const Stream& stream);

}  // namespace headroom::cpu
