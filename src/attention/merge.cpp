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

void check_written(const TensorView& view) {
  for (int i = 0; i < view.rank(); ++i) {
    check(view.extent(i) <= 1 || view.stride(i) != 0,
          "a partial result that is merged into has stride 0 in dimension {}", i);
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

void close_on_cpu(const AttentionPartial& partial, const TensorView& row_sum, const Stream& stream) {
  const TensorView& output = partial.output;
  const Shape& rows = output.shape();
  parallel_for(stream, rows[0] * rows[1], [&](std::int64_t item) {
    const std::int64_t b = item / rows[1];
    const std::int64_t q = item % rows[1];
    for (std::int64_t h = 0; h < rows[2]; ++h) {
      const double sum = row_sum.data<double>()[row_sum.offset(b, h, q)];
      if (sum == 0) continue;
      float& lse = partial.lse.data<float>()[partial.lse.offset(b, h, q)];
      const ClosedRow row = ClosedRow::of(lse, sum);
      lse = row.lse;
      float* to = output.data<float>() + output.offset(b, q, h);
      for (std::int64_t c = 0; c < rows[3]; ++c) to[c] = row.divided(to[c]);
    }
  });
}

}  // namespace

void merge_attention(Context& context, const AttentionPartial& into, const AttentionPartial& from) {
  const Shape& rows = into.output.shape();
  check(rows.rank() == 4, "a partial output has shape {}, not [batch, seq_q, heads_q, head_dim]", rows);
  check_partial(into, rows, "into");
  check_partial(from, rows, "from");
  check_written(into.output);
  check_written(into.lse);
  const bool on_cpu = context.description().kind == DeviceKind::cpu;
  const auto elements = static_cast<double>(into.output.elements());
  const auto lses = static_cast<double>(into.lse.elements());
  context.run({.kernel = "attention merge", .flops = 3 * elements, .bytes = 4 * 3 * (elements + lses)},
              [&](const Stream& stream) {
                on_cpu ? merge_on_cpu(into, from, stream)
                       : cuda::merge_partials(cuda::merge_call(into, from), stream);
              });
}

void close_attention(Context& context, const AttentionPartial& partial, const TensorView& row_sum) {
  const TensorView& output = partial.output;
  const Shape& rows = output.shape();
  check(rows.rank() == 4, "a partial output has shape {}, not [batch, seq_q, heads_q, head_dim]", rows);
  check_partial(partial, rows, "last");
  check(row_sum.shape() == partial.lse.shape() && row_sum.dtype() == DType::f64,
        "the row sums of {} are {} of {}; they have to be f64 of the same shape", partial.lse.shape(),
        row_sum.shape(), name(row_sum.dtype()));
  const bool on_cpu = context.description().kind == DeviceKind::cpu;
  const auto elements = static_cast<double>(output.elements());
  context.run({.kernel = "attention close", .flops = elements, .bytes = 4 * 2 * elements},
              [&](const Stream& stream) {
                on_cpu ? close_on_cpu(partial, row_sum, stream)
                       : cuda::close_partial(cuda::close_call(partial, row_sum), stream);
              });
}

}  // namespace headroom
