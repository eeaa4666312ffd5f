// What the tests of the operations share: what they run on, tensors with gaps between their
// rows that have to stay as they are, and the judge: error at most a multiple of a plain loop's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headroom/core/elements.h"
#include "headroom/memory/staging.h"
#include "headroom/ops.h"
#include "memory/rehearsed.h"

namespace headroom {

using Values = std::vector<double>;

inline constexpr DType kFloating[] = {DType::f32, DType::bf16, DType::f16};
inline constexpr std::int64_t kOddSizes[] = {1, 7, 63, 65, 1000};

// What the tests run on, one file for each: on_cpu.cpp, on_host.cpp (a GPU's kernels, thread by thread on the
// CPU) or, on a GPU, tests/cuda/ops_on_gpu.cpp.
[[nodiscard]] std::vector<const char*> levels_under_test();
[[nodiscard]] std::string use_level(std::string_view level);  // why not; empty: it is used from now on
[[nodiscard]] std::unique_ptr<Backend> backend_under_test(int threads);

// Tests run once per level.
class OpsLevels : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string refused = use_level(GetParam());
    if (!refused.empty()) GTEST_SKIP() << refused;
  }
  void TearDown() override { static_cast<void>(use_level("")); }
};
inline auto all_levels() {
  return testing::ValuesIn(levels_under_test());
}

inline double unit(DType dtype) {
  return dtype == DType::f32 ? 0x1p-23 : dtype == DType::f16 ? 0x1p-10 : 0x1p-7;
}

inline double rounded(double value, DType dtype) {
  const auto narrow = static_cast<float>(value);
  if (dtype == DType::bf16) return static_cast<float>(BFloat16(narrow));
  if (dtype == DType::f16) return static_cast<float>(Float16(narrow));
  return narrow;
}
inline Values rounded(Values values, DType dtype) {
  for (double& value : values) value = rounded(value, dtype);
  return values;
}

// Normal numbers that the dtype can hold.
inline Values random_values(std::int64_t count, DType dtype, std::uint64_t seed) {
  Values values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = rounded(Random(seed).normal(i), dtype);
  return values;
}

// A tensor on the device whose rows are `gap` elements apart; the gaps hold a value that nothing may change.
class Placed {
 public:
  Placed(Context& context, const Shape& shape, DType dtype, std::int64_t gap = 0)
      : width_(shape[shape.rank() - 1]) {
    const std::int64_t rows = width_ == 0 ? 0 : shape.elements() / width_;
    tensor_ = context.allocate({.name = "tensor", .dtype = dtype, .shape = {rows, width_ + gap}});
    std::vector<std::int64_t> strides(static_cast<std::size_t>(shape.rank()));
    std::int64_t stride = width_ + gap;
    strides.back() = 1;
    for (int i = shape.rank() - 2; i >= 0; --i) {
      strides[static_cast<std::size_t>(i)] = stride;
      stride *= shape[i];
    }
    view = TensorView(tensor_.view().raw(), dtype, shape, strides);
    put(context, {});
  }
  Placed(Context& context, const Shape& shape, DType dtype, const Values& values, std::int64_t gap = 0)
      : Placed(context, shape, dtype, gap) {
    put(context, values);
  }

  // The elements in order; gaps that were written to fail the test.
  [[nodiscard]] Values read(Context& context) const {
    Values values;
    std::vector<std::byte> memory;
    Staging staging(context, tensor_.view().bytes());
    const TensorView all = staging.on_host(tensor_, memory);
    if (context.phantom()) return values;
    for (std::int64_t i = 0; i < all.elements(); ++i) {
      const double value = read_element(all, i);
      if (i % all.extent(1) < width_) {
        values.push_back(value);
      } else {
        EXPECT_EQ(value, kCanary) << "a gap was written to";
      }
    }
    return values;
  }

  TensorView view;

 private:
  static constexpr double kCanary = 1536;  // every dtype holds it

  // The values, and the canary everywhere else.
  void put(Context& context, const Values& values) {
    std::vector<std::byte> memory(static_cast<std::size_t>(tensor_.view().bytes()));
    const TensorView all(memory.data(), tensor_.view().dtype(), tensor_.view().shape());
    for (std::int64_t i = 0; i < all.elements(); ++i) write_element(all, i, kCanary);
    for (std::size_t i = 0; i < values.size(); ++i) write_element(all, place(i), values[i]);
    Staging(context, all.bytes()).upload(tensor_, memory);
  }

  [[nodiscard]] std::int64_t place(std::size_t i) const {
    const auto index = static_cast<std::int64_t>(i);
    return index / width_ * tensor_.view().extent(1) + index % width_;
  }

  std::int64_t width_;
  Tensor tensor_;
};

// Whole numbers on the device.
class PlacedIds {
 public:
  PlacedIds(Context& context, const std::vector<std::int32_t>& ids)
      : tensor_(context.allocate(
            {.name = "ids", .dtype = DType::i32, .shape = {static_cast<std::int64_t>(ids.size())}})) {
    Staging(context, tensor_.view().bytes()).upload(tensor_, std::as_bytes(std::span(ids)));
  }
  operator const TensorView&() const { return tensor_.view(); }

  // Nothing of a phantom.
  [[nodiscard]] std::vector<std::int32_t> read(Context& context) const {
    std::vector<std::byte> memory;
    Staging staging(context, tensor_.view().bytes());
    const TensorView all = staging.on_host(tensor_, memory);
    if (context.phantom()) return {};
    const auto* first = all.data<std::int32_t>();
    return {first, first + all.elements()};
  }

 private:
  Tensor tensor_;
};

// Rehearsed, then run on so many threads; body() is one phase.
template <class Body>
void run_phase(int threads, const Body& body) {
  const std::unique_ptr<Backend> backend = backend_under_test(threads);
  const auto program = [&](Context& context) { context.phase(Phase::step, [&] { body(context); }); };
  Context context(*backend, rehearse(program, backend->description()));
  program(context);
}

// The largest error may be `times` that of a plain loop in f32, or a few units of the largest value.
inline void expect_close(const Values& actual, const Values& plain, const Values& exact, double times,
                         DType dtype, const std::string& what) {
  ASSERT_EQ(actual.size(), exact.size()) << what;
  ASSERT_EQ(plain.size(), exact.size()) << what;
  double error = 0;
  double plain_error = 0;
  double largest = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    ASSERT_TRUE(std::isfinite(actual[i])) << what << " at " << i << " is " << actual[i];
    error = std::max(error, std::abs(actual[i] - exact[i]));
    plain_error = std::max(plain_error, std::abs(rounded(plain[i], dtype) - exact[i]));
    largest = std::max(largest, std::abs(exact[i]));
  }
  EXPECT_LE(error, std::max(times * plain_error, 2 * unit(dtype) * largest))
      << what << ": a plain loop has " << plain_error << ", the largest value is " << largest;
}

// d(sum of results . weights) / d(inputs[i]) by central differences.
template <class Objective>
double slope(Values& inputs, std::size_t i, const Objective& objective) {
  const double before = inputs[i];
  constexpr double kStep = 1e-5;
  inputs[i] = before + kStep;
  const double above = objective();
  inputs[i] = before - kStep;
  const double below = objective();
  inputs[i] = before;
  return (above - below) / (2 * kStep);
}

}  // namespace headroom
