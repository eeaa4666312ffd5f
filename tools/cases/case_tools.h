// What lists of cases are run with: tensors and workspaces between canaries, and errors held against the
// truth.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "headroom/core/elements.h"
#include "headroom/core/random.h"

namespace headroom {

// A tensor between canaries: everything in the buffer that is not an element keeps its byte.
class Guarded {
 public:
  Guarded() = default;
  // Strided: the heads of a fused projection, with padding behind heads, rows and sequences, so that no
  // stride follows from another; odd: rows at no multiple of 16 bytes.
  Guarded(DType dtype, const Shape& shape, bool strided, bool odd = false) {
    constexpr std::int64_t kGuard = 64;
    std::vector<std::int64_t> strides(static_cast<std::size_t>(shape.rank()));
    std::int64_t reach = 1;
    for (int i = shape.rank() - 1; i >= 0; --i) {
      strides[static_cast<std::size_t>(i)] = reach;
      reach *= std::max<std::int64_t>(shape[i], 1);
      if (strided) reach = (i == shape.rank() - 1 ? 3 * reach : reach) + (odd ? 7 : 8);
    }
    bytes_.assign(static_cast<std::size_t>((reach + 2 * kGuard) * size_bytes(dtype)), kCanary);
    view_ = TensorView(bytes_.data() + kGuard * size_bytes(dtype), dtype, shape, strides);
  }

  [[nodiscard]] const TensorView& view() const { return view_; }
  // The elements and everything around them.
  [[nodiscard]] std::span<std::byte> memory() const {
    return std::as_writable_bytes(std::span(const_cast<std::vector<std::uint8_t>&>(bytes_)));
  }

  [[nodiscard]] bool canaries_alive() const {
    std::vector<bool> element(bytes_.size());
    for_each([&](std::int64_t offset) {
      const auto first = static_cast<std::size_t>(static_cast<std::uint8_t*>(view_.raw()) - bytes_.data()) +
                         static_cast<std::size_t>(offset * size_bytes(view_.dtype()));
      for (std::int64_t i = 0; i < size_bytes(view_.dtype()); ++i)
        element[first + static_cast<std::size_t>(i)] = true;
    });
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      if (!element[i] && bytes_[i] != kCanary) return false;
    }
    return true;
  }

  // body(offset in elements), in the order of a dense tensor.
  template <class Body>
  void for_each(Body body) const {
    for (std::int64_t i = 0; i < view_.elements(); ++i) {
      std::int64_t offset = 0;
      std::int64_t rest = i;
      for (int dimension = view_.rank() - 1; dimension >= 0; --dimension) {
        offset += rest % view_.extent(dimension) * view_.stride(dimension);
        rest /= view_.extent(dimension);
      }
      body(offset);
    }
  }

  void fill_normal(const Random& random, float spread) {
    std::uint64_t i = 0;
    for_each([&](std::int64_t offset) { write_element(view_, offset, random.normal(i++) * spread); });
  }

  [[nodiscard]] std::vector<double> values() const {
    std::vector<double> result;
    for_each([&](std::int64_t offset) { result.push_back(read_element(view_, offset)); });
    return result;
  }

 private:
  static constexpr std::uint8_t kCanary = 0xA5;

  std::vector<std::uint8_t> bytes_;
  TensorView view_;
};

// Memory that a kernel works in: NaN before it is written, whatever it is read as, and canaries behind it.
class Scratch {
 public:
  explicit Scratch(std::int64_t bytes) : bytes_(bytes), lines_(static_cast<std::size_t>(bytes / 64 + 2)) {
    std::memset(lines_.data(), 0xFF, lines_.size() * sizeof(Line));
  }
  [[nodiscard]] TensorView view() const { return {const_cast<Line*>(lines_.data()), DType::u8, {bytes_}}; }
  [[nodiscard]] std::span<std::byte> memory() const {
    return std::as_writable_bytes(std::span(const_cast<std::vector<Line>&>(lines_)));
  }
  [[nodiscard]] bool canaries_alive() const {
    const auto* behind = reinterpret_cast<const std::uint8_t*>(lines_.data()) + bytes_;
    return std::all_of(behind, reinterpret_cast<const std::uint8_t*>(lines_.data() + lines_.size()),
                       [](std::uint8_t byte) { return byte == 0xFF; });
  }

 private:
  struct alignas(64) Line {
    std::uint8_t bytes[64];
  };
  std::int64_t bytes_;
  std::vector<Line> lines_;
};

// Largest difference; infinities have to agree, and NaN agrees with nothing.
[[nodiscard]] inline double largest_difference(const std::vector<double>& truth,
                                               const std::vector<double>& value) {
  double largest = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    if (truth[i] == value[i]) continue;
    const double error = std::abs(truth[i] - value[i]);
    largest = std::isfinite(error) ? std::max(largest, error) : std::numeric_limits<double>::infinity();
  }
  return largest;
}

// Of the two 16-bit types, of a number from 1 to 2.
[[nodiscard]] inline double unit_in_last_place(DType dtype) {
  return dtype == DType::f16 ? 0x1p-10 : 0x1p-7;
}

// To the 10 bits behind the point of what tensor cores read as tf32, halves away from zero.
[[nodiscard]] inline float rounded_to_tf32(float x) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) + 0x1000U) & 0xffffe000U);
}

// Of the finite ones.
[[nodiscard]] inline double largest_magnitude(std::span<const double> values) {
  double largest = 0;
  for (const double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

// The largest error over what is allowed; infinity where one is not finite.
[[nodiscard]] inline double largest_ratio(std::span<const double> errors, std::span<const double> allowed) {
  double largest = 0;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    if (!std::isfinite(errors[i])) return std::numeric_limits<double>::infinity();
    if (errors[i] > 0) largest = std::max(largest, errors[i] / allowed[i]);
  }
  return largest;
}

}  // namespace headroom
