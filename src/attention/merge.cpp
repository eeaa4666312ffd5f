#include "attention/merge.h"

#include "attention/cuda/sequence.h"
#include "headroom/cpu/thread_pool.h"

namespace headroom {
namespace {

void check_partial(const AttentionPartial& partial, const Shape& rows, std::string_view what) {
  const Shape statistics{rows[0], rows[2], rows[1]};
  const TensorView& output = partial.output;
  const TensorView& lse = partial.lse;
  check(
      output.shape() == rows && lse.shape() == statistics && output.dtype() == DType::f32 &&
          lse.dtype() == DType::f32,
      "the partial result merged {} has an output {} of {} and an lse {} of {}; they have to be {} and {} of "
      "f32",
      what, output.shape(), name(output.dtype()), lse.shape(), name(lse.dtype()), rows, statistics);
  check(output.extent(3) <= 1 || output.stride(3) == 1,
        "the output merged {} has stride {} in head_dim, which has to be 1", what, output.stride(3));
}

void check_written(const TensorView& view, std::string_view what) {
  for (int i = 0; i < view.rank(); ++i) {
    check(view.extent(i) <= 1 || view.stride(i) != 0, "{} is written and has stride 0 in dimension {}", what,
          i);
  }
}

void merge_on_cpu(const AttentionPartial& into, const AttentionPartial& from, const Stream& stream) {
  const std::int64_t rows = into.output.extent(1);
  const std::int64_t heads = into.output.extent(2);
  parallel_for(stream, into.output.extent(0) * rows, [&](std::int64_t item) {
    const std::int64_t b = item / rows;
    const std::int64_t q = item % rows;
    for (std::int64_t h = 0; h < heads; ++h) {
      float& lse = into.lse.data<float>()[into.lse.offset(b, h, q)];
      const auto weights = MergeWeights::of(lse, from.lse.data<float>()[from.lse.offset(b, h, q)]);
      lse = weights.lse;
      float* to = into.output.data<float>() + into.output.offset(b, q, h);
      const float* other = from.output.data<float>() + from.output.offset(b, q, h);
      for (std::int64_t c = 0; c < into.output.extent(3); ++c) {
        to[c] = weights.merged(to[c], other[c]);
      }
    }
  });
}

template <class Element>
void close_on_cpu(const AttentionPartial& partial, const TensorView& row_sum, const TensorView& output,
                  const Stream& stream) {
  const Shape& rows = output.shape();
  parallel_for(stream, rows[0] * rows[1], [&](std::int64_t item) {
    const std::int64_t b = item / rows[1];
    const std::int64_t q = item % rows[1];
    for (std::int64_t h = 0; h < rows[2]; ++h) {
      float& lse = partial.lse.data<float>()[partial.lse.offset(b, h, q)];
      const ClosedRow row = ClosedRow::of(lse, row_sum.data<double>()[row_sum.offset(b, h, q)]);
      lse = row.lse;
      const float* from = partial.output.data<float>() + partial.output.offset(b, q, h);
      Element* to = output.data<Element>() + output.offset(b, q, h);
      for (std::int64_t c = 0; c < rows[3]; ++c) to[c] = Element(row.divided(from[c]));
    }
  });
}

}  // namespace

void merge_attention(Context& context, const AttentionPartial& into, const AttentionPartial& from) {
  const Shape& rows = into.output.shape();
  check(rows.rank() == 4, "a partial output has shape {}, not [batch, seq_q, heads_q, head_dim]", rows);
  check_partial(into, rows, "into");
  check_partial(from, rows, "from");
  check_written(into.output, "the output merged into");
  check_written(into.lse, "the lse merged into");
  const bool on_cpu = context.description().kind == DeviceKind::cpu;
  const auto elements = static_cast<double>(into.output.elements());
  const auto lses = static_cast<double>(into.lse.elements());
  context.run({.kernel = "attention merge", .flops = 3 * elements, .bytes = 4 * 3 * (elements + lses)},
              [&](const Stream& stream) {
                on_cpu ? merge_on_cpu(into, from, stream)
                       : cuda::merge_partials(cuda::merge_call(into, from), stream);
              });
}

void close_attention(Context& context, const AttentionPartial& partial, const TensorView& row_sum,
                     const TensorView& output) {
  const Shape& rows = partial.output.shape();
  check(rows.rank() == 4, "a partial output has shape {}, not [batch, seq_q, heads_q, head_dim]", rows);
  check_partial(partial, rows, "last");
  check(row_sum.shape() == partial.lse.shape() && row_sum.dtype() == DType::f64,
        "the row sums of {} are {} of {}; they have to be f64 of the same shape", partial.lse.shape(),
        row_sum.shape(), name(row_sum.dtype()));
  const DType dtype = output.dtype();
  check(output.shape() == rows && (dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16),
        "the closed output is {} of {}; it has to be {} of f32, bf16 or f16", output.shape(), name(dtype),
        rows);
  check(rows[3] % 8 == 0, "the closed output has head_dim {}, which has to be a multiple of 8", rows[3]);
  check(output.stride(3) == 1, "the closed output has stride {} in head_dim, which has to be 1",
        output.stride(3));
  check_written(output, "the closed output");
  check_written(partial.lse, "the closed lse");
  const bool on_cpu = context.description().kind == DeviceKind::cpu;
  const auto elements = static_cast<double>(output.elements());
  const auto element_bytes = static_cast<double>(size_bytes(DType::f32) + size_bytes(dtype));
  context.run({.kernel = "attention close", .flops = elements, .bytes = element_bytes * elements},
              [&](const Stream& stream) {
                if (!on_cpu) {
                  cuda::close_partial(cuda::close_call(partial, row_sum, output), stream);
                } else if (dtype == DType::f32) {
                  close_on_cpu<float>(partial, row_sum, output, stream);
                } else if (dtype == DType::bf16) {
                  close_on_cpu<BFloat16>(partial, row_sum, output, stream);
                } else {
                  close_on_cpu<Float16>(partial, row_sum, output, stream);
                }
              });
}

}  // namespace headroom
