// Spans of elements: sums, constants, conversions, SwiGLU. All are bound by memory.
#include "ops/cuda/eights.h"
#include "ops/cuda/ops.h"

namespace headroom::cuda {
namespace {

// [rows, dim] of views that are all dense, as one row, or that have rows of their own.
struct Walk {
  std::int64_t rows = 1;
  std::int64_t dim = 0;
  bool one_row = true;

  template <class... Views>
  static Walk of(const TensorView& first, const Views&... others) {
    if (first.is_dense() && (others.is_dense() && ...)) return {.dim = first.elements()};
    return {.rows = first.extent(0), .dim = first.extent(1), .one_row = false};
  }
  template <DType kType>
  [[nodiscard]] RowsOf<kType> rows_of(const TensorView& view) const {
    return one_row ? one_row_of<kType>(view) : cuda::rows_of<kType>(view);
  }
};

template <DType kType>
struct Add {
  RowsOf<kType> a, b, y;
  [[nodiscard]] bool aligned() const { return a.aligned && b.aligned && y.aligned; }
  template <class Count>
  __device__ void operator()(std::int64_t row, std::int64_t column, Count count) const {
    Eight sum = load_eight<kType>(a.at(row) + column, count, a.aligned);
    const Eight other = load_eight<kType>(b.at(row) + column, count, b.aligned);
#pragma unroll
    for (int i = 0; i < kEight; ++i) sum.at[i] += other.at[i];
    store_eight<kType>(y.at(row) + column, count, y.aligned, sum);
  }
};

template <DType kType>
struct Fill {
  RowsOf<kType> to;
  float value;
  [[nodiscard]] bool aligned() const { return to.aligned; }
  template <class Count>
  __device__ void operator()(std::int64_t row, std::int64_t column, Count count) const {
    Eight values;
#pragma unroll
    for (int i = 0; i < kEight; ++i) values.at[i] = value;
    store_eight<kType>(to.at(row) + column, count, to.aligned, values);
  }
};

template <DType kFrom, DType kTo>
struct Convert {
  RowsOf<kFrom> from;
  RowsOf<kTo> to;
  [[nodiscard]] bool aligned() const { return from.aligned && to.aligned; }
  template <class Count>
  __device__ void operator()(std::int64_t row, std::int64_t column, Count count) const {
    store_eight<kTo>(to.at(row) + column, count, to.aligned,
                     load_eight<kFrom>(from.at(row) + column, count, from.aligned));
  }
};

// 1 / (1 + e^-x). Where e^-x passes f32 it is 0, and x * 0 is right to 1e-36; NaN is the caller's: whatever
// is multiplied with x is NaN again.
__device__ __forceinline__ float sigmoid(float x) {
  return 1.0F / (1.0F + power_of_two(x * -1.44269504F));
}

template <DType kType>
struct SwigluForwardOp {
  RowsOf<kType> gate, up, act;
  [[nodiscard]] bool aligned() const { return gate.aligned && up.aligned && act.aligned; }
  template <class Count>
  __device__ void operator()(std::int64_t row, std::int64_t column, Count count) const {
    Eight g = load_eight<kType>(gate.at(row) + column, count, gate.aligned);
    const Eight u = load_eight<kType>(up.at(row) + column, count, up.aligned);
#pragma unroll
    for (int i = 0; i < kEight; ++i) g.at[i] = g.at[i] * sigmoid(g.at[i]) * u.at[i];
    store_eight<kType>(act.at(row) + column, count, act.aligned, g);
  }
};

// dup <- dact * silu(gate); dgate <- dact * up * s * (1 + gate * (1 - s)) with s = sigmoid(gate)
template <DType kType>
struct SwigluBackwardOp {
  RowsOf<kType> gate, up, act_gradient, gate_gradient, up_gradient;
  RowsOf<kType> act;  // no data: not wanted
  [[nodiscard]] bool aligned() const {
    return gate.aligned && up.aligned && act_gradient.aligned && gate_gradient.aligned &&
           up_gradient.aligned && (act.data == nullptr || act.aligned);
  }
  template <class Count>
  __device__ void operator()(std::int64_t row, std::int64_t column, Count count) const {
    Eight g = load_eight<kType>(gate.at(row) + column, count, gate.aligned);
    Eight u = load_eight<kType>(up.at(row) + column, count, up.aligned);
    Eight d = load_eight<kType>(act_gradient.at(row) + column, count, act_gradient.aligned);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      const float s = sigmoid(g.at[i]);
      const float dup = d.at[i] * (g.at[i] * s);
      const float made = g.at[i] * s * u.at[i];
      g.at[i] = d.at[i] * u.at[i] * (s * (1.0F + g.at[i] * (1.0F - s)));
      u.at[i] = dup;
      d.at[i] = made;
    }
    if (act.data != nullptr) store_eight<kType>(act.at(row) + column, count, act.aligned, d);
    store_eight<kType>(gate_gradient.at(row) + column, count, gate_gradient.aligned, g);
    store_eight<kType>(up_gradient.at(row) + column, count, up_gradient.aligned, u);
  }
};

}  // namespace

void add(const TensorView& a, const TensorView& b, const TensorView& y, const Stream& stream) {
  const Walk walk = Walk::of(a, b, y);
  with_dtype(a.dtype(), [&]<DType kType>() {
    for_eights("add_kernel", walk.rows, walk.dim, stream,
               Add<kType>{walk.rows_of<kType>(a), walk.rows_of<kType>(b), walk.rows_of<kType>(y)});
  });
}

void fill(const TensorView& view, float value, const Stream& stream) {
  const Walk walk = Walk::of(view);
  with_dtype(view.dtype(), [&]<DType kType>() {
    for_eights("fill_kernel", walk.rows, walk.dim, stream, Fill<kType>{walk.rows_of<kType>(view), value});
  });
}

void zero(const TensorView& view, const Stream& stream) {
  if (!view.is_dense()) return fill(view, 0, stream);
  set_bytes(view.raw(), 0, view.bytes(), stream);
}

void convert(const TensorView& from, const TensorView& to, const Stream& stream) {
  const Walk walk = Walk::of(from, to);
  with_dtype(from.dtype(), [&]<DType kFrom>() {
    with_dtype(to.dtype(), [&]<DType kTo>() {
      for_eights("convert_kernel", walk.rows, walk.dim, stream,
                 Convert<kFrom, kTo>{walk.rows_of<kFrom>(from), walk.rows_of<kTo>(to)});
    });
  });
}

void swiglu_forward(const TensorView& gate, const TensorView& up, const TensorView& act,
                    const Stream& stream) {
  const Walk walk = Walk::of(gate, up, act);
  with_dtype(gate.dtype(), [&]<DType kType>() {
    for_eights(
        "swiglu_kernel", walk.rows, walk.dim, stream,
        SwigluForwardOp<kType>{walk.rows_of<kType>(gate), walk.rows_of<kType>(up), walk.rows_of<kType>(act)});
  });
}

void swiglu_backward(const SwigluBackward& views, const Stream& stream) {
  const Walk walk = Walk::of(views.gate, views.up, views.act_gradient, views.gate_gradient, views.up_gradient,
                             views.act.elements() > 0 ? views.act : views.gate);
  with_dtype(views.gate.dtype(), [&]<DType kType>() {
    for_eights("swiglu_backward_kernel", walk.rows, walk.dim, stream,
               SwigluBackwardOp<kType>{
                   walk.rows_of<kType>(views.gate), walk.rows_of<kType>(views.up),
                   walk.rows_of<kType>(views.act_gradient), walk.rows_of<kType>(views.gate_gradient),
                   walk.rows_of<kType>(views.up_gradient),
                   views.act.elements() > 0 ? walk.rows_of<kType>(views.act) : RowsOf<kType>{}});
  });
}

}  // namespace headroom::cuda
