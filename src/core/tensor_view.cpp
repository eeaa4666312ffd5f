#include "headroom/core/tensor_view.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "headroom/core/checked.h"

namespace headroom {

Shape::Shape(std::span<const std::int64_t> extents) : rank_(static_cast<int>(extents.size())) {
  check(extents.size() <= kMaxRank, "rank {} is over {}", extents.size(), kMaxRank);
  for (std::size_t i = 0; i < extents.size(); ++i) {
    check(extents[i] >= 0, "extent {} of [{}] is negative", extents[i], fmt::join(extents, ", "));
    extents_[i] = extents[i];
  }
  // An empty tensor has no elements however large its other extents are.
  if (std::ranges::find(extents, 0) != extents.end()) {
    elements_ = 0;
    return;
  }
  for (const std::int64_t extent : extents) {
    check(!__builtin_mul_overflow(elements_, extent, &elements_),
          "shape [{}] has more elements than 64 bits count", fmt::join(extents, ", "));
  }
}

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape.extents(), ", "));
}

std::int64_t dense_bytes(DType dtype, const Shape& shape) {
  std::int64_t bytes = 0;
  check(!__builtin_mul_overflow(shape.elements(), size_bytes(dtype), &bytes),
        "shape {} of {} has more bytes than 64 bits count", shape, name(dtype));
  return bytes;
}

TensorView::TensorView(void* data, DType dtype, const Shape& shape)
    : data_(static_cast<std::byte*>(data)), dtype_(dtype), shape_(shape) {
  static_cast<void>(dense_bytes(dtype, shape));
  std::int64_t stride = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    strides_[static_cast<std::size_t>(i)] = stride;
    // Empty tensors are never addressed, so their strides may saturate instead of overflowing.
    if (__builtin_mul_overflow(stride, std::max<std::int64_t>(extent(i), 1), &stride)) stride = 0;
  }
}

TensorView::TensorView(void* data, DType dtype, const Shape& shape, std::span<const std::int64_t> strides)
    : data_(static_cast<std::byte*>(data)), dtype_(dtype), shape_(shape) {
  check(static_cast<int>(strides.size()) == rank(), "{} strides were given for shape {}", strides.size(),
        shape);
  static_cast<void>(dense_bytes(dtype, shape));
  std::int64_t last = 0;  // offset of the last element: it has to be addressable
  for (int i = 0; i < rank(); ++i) {
    const std::int64_t stride = strides[static_cast<std::size_t>(i)];
    check(stride >= 0, "stride {} of dimension {} is negative", stride, i);
    strides_[static_cast<std::size_t>(i)] = stride;
    if (shape.elements() > 0) last = checked_add(last, checked_multiply(extent(i) - 1, stride));
  }
  static_cast<void>(checked_multiply(checked_add(last, 1), size_bytes(dtype)));
}

bool TensorView::is_dense() const {
  if (elements() == 0) return true;
  std::int64_t expected = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (extent(i) != 1 && stride(i) != expected) return false;
    expected *= extent(i);
  }
  return true;
}

void TensorView::check_dimension(int dimension) const {
  check(dimension >= 0 && dimension < rank(), "dimension {} is not one of shape {}", dimension, shape_);
}

TensorView TensorView::moved(std::int64_t elements) const {
  TensorView view = *this;
  if (data_ != nullptr) view.data_ = data_ + elements * size_bytes(dtype_);
  return view;
}

TensorView TensorView::slice(int dimension, std::int64_t begin, std::int64_t count, std::int64_t step) const {
  check_dimension(dimension);
  check(step > 0, "slice step {} is not positive", step);
  check(begin >= 0 && count >= 0, "slice of {} rows from {} is negative", count, begin);
  const std::int64_t end =
      count == 0 ? begin : checked_add(begin, checked_add(checked_multiply(count - 1, step), 1));
  check(end <= extent(dimension), "slice [{}, {}) passes the end of dimension {} of shape {}", begin, end,
        dimension, shape_);
  TensorView view = moved(count == 0 || elements() == 0 ? 0 : begin * stride(dimension));
  std::array<std::int64_t, kMaxRank> extents{};
  std::ranges::copy(shape_.extents(), extents.begin());
  extents[static_cast<std::size_t>(dimension)] = count;
  view.shape_ = Shape(std::span(extents).first(static_cast<std::size_t>(rank())));
  // One row needs no stride; without this a wide step over a wide stride could overflow for nothing.
  view.strides_[static_cast<std::size_t>(dimension)] =
      count <= 1 ? stride(dimension) : checked_multiply(stride(dimension), step);
  return view;
}

TensorView TensorView::select(int dimension, std::int64_t index) const {
  const TensorView row = slice(dimension, index, 1);
  std::array<std::int64_t, kMaxRank> extents{};
  std::array<std::int64_t, kMaxRank> strides{};
  std::size_t kept = 0;
  for (int i = 0; i < rank(); ++i) {
    if (i == dimension) continue;
    extents[kept] = extent(i);
    strides[kept] = stride(i);
    ++kept;
  }
  return {row.data_, dtype_, Shape(std::span(extents).first(kept)), std::span(strides).first(kept)};
}

TensorView TensorView::transpose(int a, int b) const {
  check_dimension(a);
  check_dimension(b);
  std::array<std::int64_t, kMaxRank> extents{};
  std::ranges::copy(shape_.extents(), extents.begin());
  TensorView view = *this;
  std::swap(extents[static_cast<std::size_t>(a)], extents[static_cast<std::size_t>(b)]);
  std::swap(view.strides_[static_cast<std::size_t>(a)], view.strides_[static_cast<std::size_t>(b)]);
  view.shape_ = Shape(std::span(extents).first(static_cast<std::size_t>(rank())));
  return view;
}

TensorView TensorView::merge(int dimension) const {
  check_dimension(dimension);
  check_dimension(dimension + 1);
  const std::int64_t outer = extent(dimension);
  const std::int64_t inner = extent(dimension + 1);
  const std::int64_t step = inner == 1 ? stride(dimension) : stride(dimension + 1);
  check(
      elements() == 0 || outer == 1 || inner == 1 || stride(dimension) == inner * step,
      "dimensions {} and {} of shape {}, with strides {} and {}, do not follow each other and cannot be one",
      dimension, dimension + 1, shape_, stride(dimension), stride(dimension + 1));
  std::array<std::int64_t, kMaxRank> extents{};
  std::array<std::int64_t, kMaxRank> strides{};
  std::size_t kept = 0;
  for (int i = 0; i < rank(); ++i) {
    if (i == dimension + 1) continue;
    extents[kept] = i == dimension ? outer * inner : extent(i);
    strides[kept] = i == dimension ? step : stride(i);
    ++kept;
  }
  return {data_, dtype_, Shape(std::span(extents).first(kept)), std::span(strides).first(kept)};
}

TensorView TensorView::reshape(const Shape& shape) const {
  check(shape.elements() == elements(), "shape {} has {} elements, {} has {}", shape_, elements(), shape,
        shape.elements());
  check(is_dense(), "shape {} is strided; only a dense view takes another shape", shape_);
  return {data_, dtype_, shape};
}

}  // namespace headroom
