// The product through cuBLASLt: as exact as a plain f32 sum but for a factor, for every layout, dtype and
// store mode, and the same bits every time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "case_tools.h"
#include "cuda/cuda_backend.h"
#include "cuda/gpu_test.h"
#include "headroom/core/elements.h"
#include "headroom/memory.h"
#include "headroom/ops.h"
#include "memory/rehearsed.h"

namespace headroom {
namespace {

class CudaMatmul : public GpuTest {};

struct Case {
  std::int64_t m, n, k;
  bool left_transposed = false;
  bool right_transposed = false;
  DType dtype = DType::f32;
  DType result = DType::f32;
  bool add = false;
  std::int64_t gap = 0;  // between rows
};

std::string describe(const Case& c) {
  return fmt::format("{} x {} x {}{}{} {} to {}{}, gap {}", c.m, c.n, c.k, c.left_transposed ? " A^T" : "",
                     c.right_transposed ? " B^T" : "", name(c.dtype), name(c.result), c.add ? " added" : "",
                     c.gap);
}

// A matrix inside wider rows; `memory` is all of it, and the view of any memory of that size.
struct WideMatrix {
  WideMatrix(std::int64_t rows, std::int64_t columns, DType type, bool is_transposed, std::int64_t gap_after,
             std::uint64_t seed)
      : dtype(type), transposed(is_transposed), gap(gap_after), shape{rows, columns} {
    const auto elements = (transposed ? columns * (rows + gap) : rows * (columns + gap));
    memory.resize(static_cast<std::size_t>(elements * size_bytes(dtype)));
    const TensorView whole(memory.data(), dtype, {elements});
    for (std::int64_t i = 0; i < elements; ++i) {
      write_element(whole, i, Random(seed).normal(static_cast<std::uint64_t>(i)));
    }
  }
  [[nodiscard]] TensorView view(void* data) const {
    const std::int64_t rows = shape[0];
    const std::int64_t columns = shape[1];
    return transposed ? TensorView(data, dtype, {columns, rows + gap}).slice(1, 0, rows).transpose(0, 1)
                      : TensorView(data, dtype, {rows, columns + gap}).slice(1, 0, columns);
  }
  [[nodiscard]] std::vector<double> values() {
    const TensorView v = view(memory.data());
    std::vector<double> all;
    for (std::int64_t i = 0; i < v.extent(0); ++i) {
      for (std::int64_t j = 0; j < v.extent(1); ++j) all.push_back(read_element(v, v.offset(i, j)));
    }
    return all;
  }

  DType dtype;
  bool transposed;
  std::int64_t gap;
  Shape shape;
  std::vector<std::byte> memory;
};

// C's memory after the product, gaps too.
std::vector<std::byte> run_on(CudaBackend& gpu, const Case& c, const WideMatrix& a, const WideMatrix& b,
                              const WideMatrix& before, int repeats) {
  std::vector<std::byte> result(before.memory.size());
  const auto program = [&](Context& context) {
    context.phase(Phase::step, [&] {
      const auto take = [&](const WideMatrix& matrix) {
        Tensor tensor =
            context.allocate({.name = "matrix", .dtype = DType::u8, .shape = {std::ssize(matrix.memory)}});
        context.upload(tensor, matrix.memory);
        return tensor;
      };
      const Tensor left = take(a);
      const Tensor right = take(b);
      const Tensor target = take(before);
      matmul(context, a.view(left.view().raw()), b.view(right.view().raw()), before.view(target.view().raw()),
             c.add);
      context.download(result, target);
    });
  };
  Context context(gpu, rehearse(program, gpu.description()));
  program(context);
  const std::vector<std::byte> once = result;
  for (int i = 1; i < repeats; ++i) {
    program(context);
    EXPECT_TRUE(result == once) << describe(c) << ", run " << i;
  }
  return result;
}

// The largest error over the largest allowed: twice that of a plain f32 sum, three times where tensor cores
// make an f32 result, as gradients of weights are (they cut off what they shift out of a sum, where a plain
// sum rounds); or a unit in the last place of the largest value.
double judge(CudaBackend& gpu, const Case& c, int repeats = 1) {
  WideMatrix a(c.m, c.k, c.dtype, c.left_transposed, c.gap, 1);
  WideMatrix b(c.k, c.n, c.dtype, c.right_transposed, c.gap, 2);
  WideMatrix before(c.m, c.n, c.result, false, c.gap, 3);
  WideMatrix after = before;
  after.memory = run_on(gpu, c, a, b, before, repeats);
  const std::vector<double> left = a.values();
  const std::vector<double> right = b.values();
  const std::vector<double> old = before.values();
  const std::vector<double> ours = after.values();
  double plain_error = 0;
  double error = 0;
  double largest = 0;
  for (std::int64_t i = 0; i < c.m; ++i) {
    for (std::int64_t j = 0; j < c.n; ++j) {
      const auto at = static_cast<std::size_t>(i * c.n + j);
      double exact = c.add ? old[at] : 0;
      auto plain = static_cast<float>(exact);
      for (std::int64_t k = 0; k < c.k; ++k) {
        const double x = left[static_cast<std::size_t>(i * c.k + k)];
        const double y = right[static_cast<std::size_t>(k * c.n + j)];
        exact += x * y;
        plain += static_cast<float>(x) * static_cast<float>(y);
      }
      double rounded = plain;
      if (c.result == DType::bf16) rounded = static_cast<float>(BFloat16(plain));
      if (c.result == DType::f16) rounded = static_cast<float>(Float16(plain));
      plain_error = std::max(plain_error, std::abs(rounded - exact));
      const double difference = std::abs(ours[at] - exact);
      error = std::isfinite(difference) ? std::max(error, difference) : INFINITY;
      largest = std::max(largest, std::abs(exact));
    }
  }
  // What is between the rows stays as it was.
  WideMatrix untouched = before;
  const TensorView from = after.view(after.memory.data());
  const TensorView to = untouched.view(untouched.memory.data());
  for (std::int64_t i = 0; i < c.m; ++i) {
    for (std::int64_t j = 0; j < c.n; ++j)
      write_element(to, to.offset(i, j), read_element(from, from.offset(i, j)));
  }
  EXPECT_TRUE(untouched.memory == after.memory) << describe(c);
  const double unit = c.result == DType::f32 ? 0x1p-23 : unit_in_last_place(c.result);
  const double factor = c.result == DType::f32 && c.dtype != DType::f32 ? 3 : 2;
  return error / std::max({factor * plain_error, largest * unit, 1e-30});
}

TEST_F(CudaMatmul, IsAsExactAsAPlainSum) {
  CudaBackend gpu(0);
  struct Types {
    DType dtype, result;
  };
  constexpr Types kTypes[] = {{DType::f32, DType::f32},
                              {DType::bf16, DType::bf16},
                              {DType::bf16, DType::f32},
                              {DType::f16, DType::f16},
                              {DType::f16, DType::f32}};
  for (const auto& [m, n, k] : {std::tuple{1, 1, 1},
                                {3, 5, 7},
                                {1, 130, 64},
                                {130, 1, 33},
                                {64, 96, 128},
                                {65, 67, 129},
                                {200, 72, 1000},
                                {17, 256, 4099}}) {
    for (const Types& types : kTypes) {
      for (int bits = 0; bits < 16; ++bits) {
        const Case c{.m = m,
                     .n = n,
                     .k = k,
                     .left_transposed = (bits & 1) != 0,
                     .right_transposed = (bits & 2) != 0,
                     .dtype = types.dtype,
                     .result = types.result,
                     .add = (bits & 4) != 0,
                     .gap = (bits & 8) != 0 ? 3 : 0};
        EXPECT_LE(judge(gpu, c), 1) << describe(c);
      }
    }
  }
}

TEST_F(CudaMatmul, AnEmptyDepthGivesZerosOrNothing) {
  CudaBackend gpu(0);
  for (const bool add : {false, true}) {
    EXPECT_LE(
        judge(gpu,
              {.m = 5, .n = 9, .k = 0, .dtype = DType::bf16, .result = DType::bf16, .add = add, .gap = 3}),
        1);
  }
}

TEST_F(CudaMatmul, TheSameBitsEveryTimeAndNothingIsAllocated) {
  CudaBackend gpu(0);
  // Few tiles and much depth, where a split of the depth pays.
  const Case c{.m = 96, .n = 64, .k = 20'000, .dtype = DType::bf16, .result = DType::bf16};
  EXPECT_LE(judge(gpu, c, 3), 1);
  const std::int64_t free_bytes = cuda_memory(0).free_bytes;
  EXPECT_LE(judge(gpu, c, 20), 1);
  EXPECT_EQ(cuda_memory(0).free_bytes, free_bytes);
}

// Tokens of a long context: more elements than 32 bits count, the last rows unlike the others.
TEST_F(CudaMatmul, PastTwoToThe31Elements) {
  constexpr std::int64_t kRows = 600'000;
  constexpr std::int64_t kLast = 1000;
  constexpr std::int64_t kWidth = 4096;
  std::vector<std::byte> rows_on_host(kLast * kWidth * 2);
  std::vector<std::byte> weight_gradient_on_host(kWidth * kWidth * 4);
  const auto program = [&](Context& context) {
    context.phase(Phase::step, [&] {
      const auto take = [&](DType dtype, std::int64_t rows) {
        return context.allocate({.name = "matrix", .dtype = dtype, .shape = {rows, kWidth}});
      };
      const Tensor x = take(DType::bf16, kRows), weight = take(DType::bf16, kWidth);
      const Tensor y = take(DType::bf16, kRows), last = take(DType::bf16, kLast);
      const Tensor weight_gradient = take(DType::f32, kWidth);
      fill(context, x.view().slice(0, 0, kRows - kLast), 1);
      fill(context, x.view().slice(0, kRows - kLast, kLast), 2);
      fill(context, weight, 1);
      matmul(context, x, weight, y);
      matmul(context, x.view().transpose(0, 1), x, weight_gradient);
      convert(context, y.view().slice(0, kRows - kLast, kLast), last);
      context.download(rows_on_host, last);
      context.download(weight_gradient_on_host, weight_gradient);
    });
  };
  CudaBackend gpu(0);
  Context context(gpu, rehearse(program, gpu.description()));
  program(context);
  const TensorView rows(rows_on_host.data(), DType::bf16, {kLast * kWidth});
  for (std::int64_t i = 0; i < rows.elements(); ++i) ASSERT_EQ(read_element(rows, i), 2 * kWidth) << i;
  const TensorView sums(weight_gradient_on_host.data(), DType::f32, {kWidth * kWidth});
  for (std::int64_t i = 0; i < sums.elements(); ++i) {
    ASSERT_EQ(read_element(sums, i), kRows - kLast + 4 * kLast) << i;
  }
}

}  // namespace
}  // namespace headroom
