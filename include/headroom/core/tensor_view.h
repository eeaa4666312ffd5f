// A view of memory that somebody else owns: pointer, dtype, up to five 64-bit extents and strides. Slices,
// strided rows and transposes are views of the same memory; nothing here copies or allocates. On a phantom
// device the pointer is null and everything else is real.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "headroom/core/dtype.h"
#include "headroom/core/error.h"

namespace headroom {

inline constexpr int kMaxRank = 5;

// Extents with their product; negative extents and products past 64 bits are refused on construction.
class Shape {
 public:
  Shape() = default;  // rank 0: one element
  Shape(std::initializer_list<std::int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}
  explicit Shape(std::span<const std::int64_t> extents);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] std::int64_t elements() const { return elements_; }
  [[nodiscard]] std::int64_t operator[](int dimension) const {
    return extents_[static_cast<std::size_t>(dimension)];
  }
  [[nodiscard]] std::span<const std::int64_t> extents() const {
    return {extents_.data(), static_cast<std::size_t>(rank_)};
  }
  bool operator==(const Shape&) const = default;

 private:
  std::array<std::int64_t, kMaxRank> extents_{};
  std::int64_t elements_ = 1;
  int rank_ = 0;
};

[[nodiscard]] std::string to_string(const Shape& shape);  // [2, 4096, 8, 64]

// Bytes of a dense tensor; past 64 bits is an error.
[[nodiscard]] std::int64_t dense_bytes(DType dtype, const Shape& shape);

class TensorView {
 public:
  TensorView() = default;
  TensorView(void* data, DType dtype, const Shape& shape);  // dense, last dimension fastest
  // Strides are in elements and not negative; 0 repeats.
  TensorView(void* data, DType dtype, const Shape& shape, std::span<const std::int64_t> strides);

  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] int rank() const { return shape_.rank(); }
  [[nodiscard]] std::int64_t extent(int dimension) const { return shape_[dimension]; }
  [[nodiscard]] std::int64_t stride(int dimension) const {
    return strides_[static_cast<std::size_t>(dimension)];
  }
  [[nodiscard]] std::int64_t elements() const { return shape_.elements(); }
  [[nodiscard]] std::int64_t bytes() const {
    return elements() * size_bytes(dtype_);
  }  // of the elements, not gaps
  [[nodiscard]] bool is_dense() const;
  [[nodiscard]] void* raw() const { return data_; }

  template <class T>
  [[nodiscard]] T* data() const {
    check(dtype_of<T> == dtype_, "view holds {}, not {}", name(dtype_), name(dtype_of<T>));
    return reinterpret_cast<T*>(data_);
  }

  // One element, in elements from data(); bounds are the caller's business in release builds.
  template <std::integral... Index>
  [[nodiscard]] std::int64_t offset(Index... index) const {
    const std::array<std::int64_t, sizeof...(Index)> indices{static_cast<std::int64_t>(index)...};
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < sizeof...(Index); ++i) sum += indices[i] * strides_[i];
    return sum;
  }

  // Rows begin, begin + step, ... (count of them) of one dimension.
  [[nodiscard]] TensorView slice(int dimension, std::int64_t begin, std::int64_t count,
                                 std::int64_t step = 1) const;
  // One index of a dimension, which disappears.
  [[nodiscard]] TensorView select(int dimension, std::int64_t index) const;
  [[nodiscard]] TensorView transpose(int a, int b) const;
  // A dimension and the next as one. The rows of the next have to follow each other without a gap.
  [[nodiscard]] TensorView merge(int dimension) const;
  // The same elements in another shape; dense views only.
  [[nodiscard]] TensorView reshape(const Shape& shape) const;

 private:
  void check_dimension(int dimension) const;
  [[nodiscard]] TensorView moved(std::int64_t elements) const;

  std::byte* data_ = nullptr;
  DType dtype_ = DType::f32;
  Shape shape_{0};
  std::array<std::int64_t, kMaxRank> strides_{};
};

}  // namespace headroom

// So that messages are made only where they are needed.
template <>
struct fmt::formatter<headroom::Shape> : fmt::formatter<std::string_view> {
  auto format(const headroom::Shape& shape, fmt::format_context& context) const {
    return fmt::formatter<std::string_view>::format(headroom::to_string(shape), context);
  }
};
