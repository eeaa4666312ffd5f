// The kernels of the small operations for one instruction set: what one work item does, on plain pointers.
// One table of functions per instruction set, chosen at run time. Results of an element depend on its row
// alone, never on where a work item begins.
#pragma once

#include <cstdint>

#include "cpu/levels.h"
#include "headroom/core/device.h"
#include "headroom/core/dtype.h"
#include "headroom/ops/rope_frequencies.h"
#include "ops/adamw_factors.h"

namespace headroom::cpu {

// Rows of a tensor with unit stride inside a row: [outer, inner, dim].
struct Rows {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t outer_stride = 0;  // in elements
  std::int64_t inner_stride = 0;
  std::int64_t inner = 1;  // rows per outer one

  [[nodiscard, gnu::always_inline]] std::int64_t offset(std::int64_t row) const {
    return inner == 1 ? row * outer_stride : row / inner * outer_stride + row % inner * inner_stride;
  }
};

struct RmsNormForwardRows {
  Rows x;
  Rows y;
  const void* weight;
  DType weight_dtype;
  float* rstd;  // of row i at i
  std::int64_t dim;
  float epsilon;
};

struct RmsNormBackwardRows {
  Rows x;
  Rows y_gradient;
  Rows x_gradient;
  const void* weight;
  DType weight_dtype;
  const float* rstd;
  std::int64_t dim;
  bool add;  // to x_gradient
};

struct RopeTokens {
  void* x;  // [tokens, heads, 2 * half]
  DType dtype;
  std::int64_t token_stride;
  std::int64_t head_stride;
  std::int64_t heads;
  const std::int32_t* positions;
  const RopeFrequencies* frequencies;
  bool backward;
};

struct SwigluSpan {
  DType dtype;
  const void* gate;
  const void* up;
  const void* act_gradient;
  void* gate_gradient;
  void* up_gradient;
  void* act;  // null: not wanted
};

// table[ids[t]] += x[t] for the tokens whose id leaves `group` when divided by `groups`, `columns` wide.
struct ScatterAdd {
  Rows x;
  const std::int32_t* ids;
  std::int64_t tokens;
  std::int32_t group;
  std::int32_t groups;
  std::int32_t pad_token;  // left out; -1: none is
  std::int64_t column;
  std::int64_t columns;
  float* table;
  std::int64_t table_stride;
};

struct AdamWSpan {
  float* master;
  const float* gradient;
  float* first;
  float* second;
  void* weight;  // null: the master is the weight
  DType weight_dtype;
  const float* factor;
};

struct OpKernels {
  // Rows [begin, end).
  void (*rms_norm_forward)(const RmsNormForwardRows& rows, std::int64_t begin, std::int64_t end);
  // Also weight_gradient [dim] <- this chunk's part.
  void (*rms_norm_backward)(const RmsNormBackwardRows& rows, std::int64_t begin, std::int64_t end,
                            float* weight_gradient);
  // sums[i] += parts[0][i] + parts[1][i] + ..., in this order; parts are [count, stride].
  void (*add_parts)(const float* parts, std::int64_t count, std::int64_t stride, std::int64_t columns,
                    DType sums_dtype, void* sums);
  // Tokens [begin, end).
  void (*rope)(const RopeTokens& tokens, std::int64_t begin, std::int64_t end);
  // cos and sin [kMaxRopeHalf] of one position, with the magnitude: what rope multiplies with.
  void (*rope_angles)(const RopeFrequencies& frequencies, std::int32_t position, float* cosine, float* sine);
  void (*swiglu_forward)(DType dtype, const void* gate, const void* up, void* act, std::int64_t count);
  void (*swiglu_backward)(const SwigluSpan& span, std::int64_t count);
  void (*scatter_add)(const ScatterAdd& scatter);
  void (*add)(DType dtype, const void* a, const void* b, void* y, std::int64_t count);
  void (*fill)(DType dtype, void* data, float value, std::int64_t count);
  void (*convert)(DType from_dtype, const void* from, DType to_dtype, void* to, std::int64_t count);
  void (*adamw)(const AdamWFactors& factors, const AdamWSpan& span, std::int64_t count);
  double (*sum_of_squares)(const float* data, std::int64_t count);
};

[[nodiscard]] const OpKernels& op_kernels_portable();
[[nodiscard]] const OpKernels& op_kernels_avx2();
[[nodiscard]] const OpKernels& op_kernels_avx512();

// Those of a level; the description of a CPU says which it has.
[[nodiscard]] const OpKernels& op_kernels(SimdLevel level);

}  // namespace headroom::cpu
