// The small operations on GPUs, as src/ops/cpu/ops.h has them for CPUs. A build without CUDA has functions
// that refuse in their place.
#pragma once

#include "headroom/core/stream.h"
#include "headroom/ops.h"
#include "ops/adamw_factors.h"
#include "ops/narrow_state.h"

namespace headroom::cuda {

// Of a row; longer ones are refused where a row of the table is picked.
inline constexpr std::int64_t kMostNormElements = 32'768;
void rms_norm_forward(const RmsNormForward& views, float epsilon, const Stream& stream);

// The workspace holds parts of the weight's gradient, one per block of the launch.
inline constexpr std::int64_t kMostParts = 6;  // for each core of the device
[[nodiscard]] inline std::int64_t rms_norm_parts(const DeviceDescription& device) {
  return device.cores * kMostParts;
}
void rms_norm_backward(const RmsNormBackward& views, Store x_gradient, const TensorView& workspace,
                       const Stream& stream);

void rope(const TensorView& x, const TensorView& positions, const RopeFrequencies& frequencies, Pass pass,
          const Stream& stream);

// Returns false, and does nothing, where the heads are not made of eights that the kernel loads as halves.
bool rope_in_halves(const TensorView& x, const RopeCall& rope, Pass pass, const Stream& stream);
void rms_norm_rope_forward(const RmsNormForward& views, float epsilon, const RopeCall& rope,
                           const Stream& stream);
// The workspace of rms_norm_backward. The gradient of y may be turned in place.
void rms_norm_rope_backward(const RmsNormBackward& views, Store x_gradient, const RopeCall& rope,
                            const TensorView& workspace, const Stream& stream);

void swiglu_forward(const TensorView& gate, const TensorView& up, const TensorView& act,
                    const Stream& stream);
void swiglu_backward(const SwigluBackward& views, const Stream& stream);

// An id outside of the table gives a row of NaN, and no gradient: the host checks ids where it makes them.
void embedding_forward(const TensorView& table, const TensorView& ids, const TensorView& x,
                       const Stream& stream);
// The workspace holds a TokenSort.
void embedding_backward(const TensorView& ids, const TensorView& x_gradient, const TensorView& table_gradient,
                        std::int32_t pad_token, const TensorView& workspace, const Stream& stream);

void add(const TensorView& a, const TensorView& b, const TensorView& y, const Stream& stream);
void fill(const TensorView& view, float value, const Stream& stream);
void zero(const TensorView& view, const Stream& stream);
void convert(const TensorView& from, const TensorView& to, const Stream& stream);

// The workspace holds partial sums, one per block.
inline constexpr std::int64_t kSumBlocks = 1024;
void sum_of_squares(const TensorView& view, const TensorView& result, Store store,
                    const TensorView& workspace, const Stream& stream);
void clip_factor(const ClipFactor& views, const Clipping& clipping, const Stream& stream);

void adamw(const AdamWViews& views, const AdamWFactors& factors, const Stream& stream);
void adamw_narrow(const NarrowUpdate& update, const Stream& stream);

}  // namespace headroom::cuda
