#include "headroom/ops/matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "headroom/core/checked.h"
#include "headroom/core/elements.h"
#include "headroom/core/random.h"
#include "headroom/cpu.h"
#include "memory/rehearsed.h"
#include "ops/matmul.h"

namespace headroom {
namespace {

// A matrix of random elements in memory of its own: rows or columns contiguous, with a gap between them.
class TestMatrix {
 public:
  TestMatrix(std::int64_t rows, std::int64_t columns, DType dtype, bool transposed, std::int64_t gap,
             std::uint64_t seed)
      : size_((transposed ? columns * (rows + gap) : rows * (columns + gap)) * size_bytes(dtype)),
        bytes_(static_cast<std::size_t>(size_) + 64) {
    void* data = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(bytes_.data()) + 63) / 64 * 64);
    view_ = transposed ? TensorView(data, dtype, {columns, rows + gap}).slice(1, 0, rows).transpose(0, 1)
                       : TensorView(data, dtype, {rows, columns + gap}).slice(1, 0, columns);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        write_element(view_, view_.offset(i, j),
                      Random(seed).normal(static_cast<std::uint64_t>(i * columns + j)));
      }
    }
  }
  [[nodiscard]] const TensorView& view() const { return view_; }
  [[nodiscard]] double at(std::int64_t i, std::int64_t j) const {
    return read_element(view_, view_.offset(i, j));
  }
  // Everything, gaps too.
  [[nodiscard]] std::vector<std::byte> bytes() const {
    const auto* data = static_cast<const std::byte*>(view_.raw());
    return {data, data + size_};
  }

 private:
  std::int64_t size_;
  std::vector<std::byte> bytes_;
  TensorView view_;
};

struct Product {
  std::int64_t m, n, k;
  bool left_transposed = false;
  bool right_transposed = false;
  DType dtype = DType::f32;
  DType result = DType::f32;
  bool add = false;
  std::int64_t gap = 0;
};

void run(const TensorView& a, const TensorView& b, const TensorView& c, bool add, SimdLevel level,
         int threads) {
  CpuBackend backend(threads);
  DeviceDescription device = backend.description();
  device.simd = level;
  Stream stream = backend.stream(StreamId::main);
  stream.device = &device;
  // Not zeros: a kernel must not count on them.
  std::vector<std::byte> memory(
      static_cast<std::size_t>(product_workspace_bytes(c.extent(1), a.extent(1), device, c.dtype())) + 64,
      std::byte{0xff});
  void* aligned = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64);
  product_row(device).run({a, b, c, add},
                          TensorView(aligned, DType::u8, {static_cast<std::int64_t>(memory.size()) - 64}),
                          stream);
}

// The largest error over the largest allowed: twice that of a plain f32 sum, or a unit in the last place.
double judge(const Product& p, SimdLevel level) {
  const TestMatrix a(p.m, p.k, p.dtype, p.left_transposed, p.gap, 1);
  const TestMatrix b(p.k, p.n, p.dtype, p.right_transposed, p.gap, 2);
  const TestMatrix before(p.m, p.n, p.result, false, p.gap, 3);
  const TestMatrix c(p.m, p.n, p.result, false, p.gap, 3);
  run(a.view(), b.view(), c.view(), p.add, level, 2);
  double plain_error = 0;
  double error = 0;
  double largest = 0;
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.n; ++j) {
      double exact = p.add ? before.at(i, j) : 0;
      auto plain = static_cast<float>(exact);
      for (std::int64_t k = 0; k < p.k; ++k) {
        exact += a.at(i, k) * b.at(k, j);
        plain += static_cast<float>(a.at(i, k)) * static_cast<float>(b.at(k, j));
      }
      double rounded = plain;
      if (p.result == DType::bf16) rounded = static_cast<float>(BFloat16(plain));
      if (p.result == DType::f16) rounded = static_cast<float>(Float16(plain));
      plain_error = std::max(plain_error, std::abs(rounded - exact));
      error = std::max(error, std::abs(c.at(i, j) - exact));
      largest = std::max(largest, std::abs(exact));
    }
  }
  // What is between the rows stays as it was.
  TestMatrix untouched(p.m, p.n, p.result, false, p.gap, 3);
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.n; ++j)
      write_element(untouched.view(), untouched.view().offset(i, j), c.at(i, j));
  }
  EXPECT_TRUE(untouched.bytes() == c.bytes());
  const double unit = p.result == DType::f32 ? 0x1p-23 : p.result == DType::f16 ? 0x1p-10 : 0x1p-7;
  return error / std::max({2 * plain_error, largest * unit, 1e-30});
}

class MatmulLevels : public testing::TestWithParam<SimdLevel> {
 protected:
  void SetUp() override {
    if (GetParam() > describe_cpu().simd) GTEST_SKIP() << "this CPU has no " << name(GetParam());
  }
};

TEST_P(MatmulLevels, EveryShapeAndLayout) {
  const std::vector<std::array<std::int64_t, 3>> shapes = {
      {1, 1, 1},   {1, 239, 3},   {5, 7, 0},     {6, 64, 128},   {7, 65, 129},
      {97, 63, 1}, {96, 513, 64}, {100, 48, 96}, {98, 130, 257}, {3, 1030, 130}};
  for (const auto& [m, n, k] : shapes) {
    for (const bool left : {false, true}) {
      for (const bool right : {false, true}) {
        for (const bool add : {false, true}) {
          const Product p{.m = m,
                          .n = n,
                          .k = k,
                          .left_transposed = left,
                          .right_transposed = right,
                          .add = add,
                          .gap = add ? 3 : 0};
          EXPECT_LE(judge(p, GetParam()), 1) << m << " x " << n << " x " << k << (left ? " left^T" : "")
                                             << (right ? " right^T" : "") << (add ? " add" : "");
        }
      }
    }
  }
}

TEST_P(MatmulLevels, EveryDtype) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const DType result : {dtype, DType::f32}) {
      for (const bool transposed : {false, true}) {
        const Product p{.m = 101,
                        .n = 77,
                        .k = 135,
                        .left_transposed = transposed,
                        .right_transposed = !transposed,
                        .dtype = dtype,
                        .result = result,
                        .add = result == DType::f32,
                        .gap = 5};
        EXPECT_LE(judge(p, GetParam()), 1) << name(dtype) << " into " << name(result) << transposed;
      }
    }
  }
}

// Depths of one pass, one more, the widest MLPs in use, and three passes.
TEST_P(MatmulLevels, EveryDepth) {
  for (const std::int64_t depth : {16'384, 16'385, 28'672, 40'000}) {
    for (const DType result : {DType::f32, DType::bf16, DType::f16}) {
      const bool add = depth == 28'672;
      const Product p{.m = 2,
                      .n = 67,
                      .k = depth,
                      .left_transposed = add,
                      .right_transposed = !add,
                      .dtype = result,
                      .result = result,
                      .add = add,
                      .gap = 3};
      EXPECT_LE(judge(p, GetParam()), 1) << depth << " deep into " << name(result);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Simd, MatmulLevels,
                         testing::Values(SimdLevel::portable, SimdLevel::avx2, SimdLevel::avx512),
                         [](const auto& level) { return std::string(name(level.param)); });

TEST(Matmul, SameBitsWhateverTheThreadsAndThePieces) {
  const std::int64_t m = 200;
  const std::int64_t n = 1100;
  const std::int64_t k = 20000;  // past the depth of one pass
  const TestMatrix a(m, k, DType::f32, true, 0, 1);
  const TestMatrix b(k, n, DType::f32, false, 0, 2);
  const TestMatrix first(m, n, DType::f32, false, 0, 3);
  run(a.view(), b.view(), first.view(), true, describe_cpu().simd, 1);
  for (const int threads : {2, 4}) {
    const TestMatrix again(m, n, DType::f32, false, 0, 3);
    run(a.view(), b.view(), again.view(), true, describe_cpu().simd, threads);
    EXPECT_EQ(std::memcmp(first.view().raw(), again.view().raw(), static_cast<std::size_t>(m * n) * 4), 0);
  }
  // The depth in three products that add.
  CpuBackend backend(2);
  const TestMatrix pieces(m, n, DType::f32, false, 0, 3);
  std::vector<std::byte> memory(
      static_cast<std::size_t>(product_workspace_bytes(n, k, backend.description())) + 64);
  void* aligned = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64);
  const TensorView workspace(aligned, DType::u8, {static_cast<std::int64_t>(memory.size()) - 64});
  std::int64_t begin = 0;
  for (const std::int64_t end : {std::int64_t{7}, std::int64_t{9001}, k}) {
    product_row(backend.description())
        .run({a.view().slice(1, begin, end - begin), b.view().slice(0, begin, end - begin), pieces.view(),
              true},
             workspace, backend.stream(StreamId::main));
    begin = end;
  }
  EXPECT_EQ(std::memcmp(first.view().raw(), pieces.view().raw(), static_cast<std::size_t>(m * n) * 4), 0);
}

// Whatever the depth, a 16-bit result is the f32 sum, rounded once.
void expect_rounded_once(std::int64_t m, std::int64_t n, std::int64_t k, bool add) {
  SCOPED_TRACE(fmt::format("{} x {} x {}{}", m, n, k, add ? ", add" : ""));
  // Rows overlap in memory, so that so many take little of it.
  constexpr std::array<std::int64_t, 2> kStrides = {16, 1};
  const TestMatrix left(1, k + kStrides[0] * m, DType::bf16, false, 0, 1);
  const TestMatrix right(1, k + kStrides[0] * n, DType::bf16, false, 0, 2);
  const TensorView a(left.view().raw(), DType::bf16, {m, k}, kStrides);
  const TensorView b = TensorView(right.view().raw(), DType::bf16, {n, k}, kStrides).transpose(0, 1);
  const TestMatrix before(m, n, DType::bf16, false, 0, 3);
  const TestMatrix wide(m, n, DType::f32, false, 0, 3);
  for (std::int64_t i = 0; i < m * n; ++i) write_element(wide.view(), i, read_element(before.view(), i));
  run(a, b, wide.view(), add, describe_cpu().simd, 2);
  for (const int threads : {1, 3}) {
    const TestMatrix narrow(m, n, DType::bf16, false, 0, 3);
    run(a, b, narrow.view(), add, describe_cpu().simd, threads);
    std::int64_t different = 0;
    for (std::int64_t i = 0; i < m * n; ++i) {
      const auto sum = static_cast<float>(read_element(wide.view(), i));
      different += read_element(narrow.view(), i) != static_cast<float>(BFloat16(sum));
    }
    EXPECT_EQ(different, 0) << threads << " threads";
  }
}

TEST(Matmul, ADeepProductIsRoundedOnce) {
  for (const bool add : {false, true}) {
    expect_rounded_once(1'600, 9, 16'390, add);  // more rows than sums that wait
    expect_rounded_once(100, 300, 40'000, add);  // more columns than are packed at a time
  }
}

TEST(Matmul, AWorkspaceServesEverySmallerProduct) {
  const DeviceDescription device = describe_cpu();
  std::int64_t before = 0;
  for (std::int64_t k = 1; k < 20'000; k += 13) {
    const std::int64_t bytes = product_workspace_bytes(2560, k, device);
    EXPECT_GE(bytes, before) << k;
    EXPECT_LE(product_workspace_bytes(2559, k, device), bytes) << k;
    before = bytes;
  }
}

TEST(Matmul, RehearsedAndRun) {
  float result = 0;
  run_rehearsed([&](Context& context) {
    context.phase(Phase::step, [&] {
      const Tensor a = context.allocate({.name = "a", .shape = {3, 4}});
      const Tensor b = context.allocate({.name = "b", .shape = {5, 4}});
      const Tensor c = context.allocate({.name = "c", .shape = {3, 5}});
      context.run([&](const Stream&) {
        std::fill_n(a.data<float>(), 12, 2.0F);
        std::fill_n(b.data<float>(), 20, 3.0F);
      });
      matmul(context, a, b.view().transpose(0, 1), c);
      context.run([&](const Stream&) { result = c.data<float>()[14]; });
    });
  });
  EXPECT_EQ(result, 24);
}

TEST(Matmul, RefusesWhatDoesNotFit) {
  const auto message = [](const TensorView& a, const TensorView& b, const TensorView& c) {
    Context context(describe_cpu());
    std::string text;
    context.phase(Phase::step, [&] {
      try {
        matmul(context, a, b, c);
      } catch (const Error& error) {
        text = error.what();
      }
    });
    return text;
  };
  const auto view = [](const Shape& shape, DType dtype = DType::f32) {
    return TensorView(nullptr, dtype, shape);
  };
  EXPECT_THAT(message(view({2, 3}), view({4, 5}), view({2, 5})), testing::HasSubstr("[2, 3] and [4, 5]"));
  EXPECT_THAT(message(view({2, 3}), view({3, 5}), view({5, 2}).transpose(0, 1)),
              testing::HasSubstr("stride"));
  EXPECT_THAT(message(view({2, 3}), view({3, 5}), view({2, 5}, DType::i32)), testing::HasSubstr("i32"));
  EXPECT_EQ(message(view({2, 20000}), view({20000, 5}), view({2, 5}, DType::bf16)), "");
  EXPECT_THAT(message(view({6, 6}).slice(0, 0, 3, 2).slice(1, 0, 3, 2), view({3, 5}), view({3, 5})),
              testing::HasSubstr("one has to be 1"));
}

// Loops over tiles take it once for the whole tile; what is left over at the end is smaller.
TEST(MatmulWorkspace, IsEnoughForEverySmallerProduct) {
  const DeviceDescription device{.name = "made up", .cores = 4};
  for (const DType result : {DType::f32, DType::bf16}) {
    for (const std::int64_t n : {1, 64, 500, 1024, 4096, 12'288}) {
      std::int64_t largest = 0;
      for (std::int64_t k = 1; k <= 20'000; k += k < 64 ? 1 : 61) {
        const std::int64_t bytes = product_workspace_bytes(n, k, device, result);
        EXPECT_GE(bytes, largest) << n << " columns, depth " << k;
        EXPECT_GE(bytes, product_workspace_bytes(divide_up(n, 2), k, device, result))
            << n << " columns, depth " << k;
        EXPECT_GE(bytes, product_workspace_bytes(n, k, device)) << n << " columns, depth " << k;
        largest = std::max(largest, bytes);
      }
      EXPECT_LE(largest, 64 << 20);  // bounded, whatever the depth
      EXPECT_EQ(product_workspace_bytes(n, std::int64_t{1} << 40, device, result), largest);
    }
  }
}

}  // namespace
}  // namespace headroom
