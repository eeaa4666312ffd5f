#include "headroom/core/tensor_view.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace headroom {
namespace {

constexpr std::int64_t kBig = std::int64_t{1} << 40;

TEST(Shape, CountsAndRefuses) {
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_EQ((Shape{2, 3, 4}).elements(), 24);
  EXPECT_EQ((Shape{kBig, 0, kBig}).elements(), 0);  // empty, whatever the others are
  EXPECT_EQ(to_string(Shape{2, 4096, 8, 64}), "[2, 4096, 8, 64]");
  EXPECT_THROW((Shape{1, 2, 3, 4, 5, 6}), Error);
  EXPECT_THROW((Shape{-1}), Error);
  EXPECT_THROW((Shape{kBig, kBig}), Error);
  EXPECT_THROW(static_cast<void>(dense_bytes(DType::f32, {std::int64_t{1} << 62})), Error);
  EXPECT_EQ(dense_bytes(DType::bf16, {131072, 151936}), 39'829'110'784);
}

TEST(TensorView, SlicesShareMemory) {
  std::vector<float> data(2 * 6 * 4);
  std::iota(data.begin(), data.end(), 0.0F);
  const TensorView view(data.data(), DType::f32, {2, 6, 4});
  EXPECT_TRUE(view.is_dense());
  EXPECT_EQ(view.data<float>()[view.offset(1, 2, 3)], 24 + 8 + 3);

  // Every second row from row 1: the dilated segment of a sequence, without a copy.
  const TensorView rows = view.slice(1, 1, 3, 2);
  EXPECT_EQ(rows.shape(), (Shape{2, 3, 4}));
  EXPECT_FALSE(rows.is_dense());
  EXPECT_EQ(rows.data<float>()[rows.offset(1, 2, 0)], 24 + 5 * 4);
  EXPECT_EQ(rows.bytes(), 2 * 3 * 4 * 4);

  const TensorView last = view.select(0, 1);
  EXPECT_EQ(last.shape(), (Shape{6, 4}));
  EXPECT_TRUE(last.is_dense());
  const TensorView turned = last.transpose(0, 1);
  EXPECT_EQ(turned.shape(), (Shape{4, 6}));
  EXPECT_EQ(turned.data<float>()[turned.offset(3, 5)], last.data<float>()[last.offset(5, 3)]);
  EXPECT_EQ(view.reshape({12, 4}).offset(11, 3), 47);
  EXPECT_EQ(view.slice(1, 6, 0).elements(), 0);  // empty at the end is fine
}

TEST(TensorView, MergesDimensionsWithoutAGap) {
  const TensorView view(nullptr, DType::f32, {2, 5, 6, 4});
  const TensorView some = view.slice(2, 1, 3);  // heads of every token
  const TensorView rows = some.merge(2).merge(0);
  EXPECT_EQ(rows.shape(), (Shape{10, 12}));
  EXPECT_EQ(rows.offset(7, 9), view.offset(1, 2, 2, 1) - view.offset(0, 0, 0, 0));
  EXPECT_EQ(rows.stride(0), 24);
  EXPECT_THROW(static_cast<void>(some.merge(1)), Error);  // other heads lie between
  EXPECT_THROW(static_cast<void>(view.transpose(0, 1).merge(0)), Error);
  EXPECT_THROW(static_cast<void>(view.merge(3)), Error);
  // One of something has no gap, whatever its stride.
  EXPECT_EQ(view.slice(2, 1, 1).merge(1).shape(), (Shape{2, 5, 4}));
  EXPECT_EQ(view.slice(2, 1, 1).merge(1).stride(1), 24);
  EXPECT_EQ(view.slice(1, 3, 1).merge(0).stride(0), 120);
  EXPECT_EQ(view.slice(1, 0, 0).merge(1).shape(), (Shape{2, 0, 4}));
}

TEST(TensorView, RefusesWhatDoesNotFit) {
  std::array<float, 24> data{};
  const TensorView view(data.data(), DType::f32, {4, 6});
  EXPECT_THROW(static_cast<void>(view.data<double>()), Error);
  EXPECT_THROW(static_cast<void>(view.slice(2, 0, 1)), Error);
  EXPECT_THROW(static_cast<void>(view.slice(0, 0, 5)), Error);
  EXPECT_THROW(static_cast<void>(view.slice(0, 1, 2, 3)), Error);
  EXPECT_THROW(static_cast<void>(view.slice(0, -1, 1)), Error);
  EXPECT_THROW(static_cast<void>(view.slice(0, 0, 1, 0)), Error);
  EXPECT_THROW(static_cast<void>(view.slice(0, 1, std::numeric_limits<std::int64_t>::max(), 2)), Error);
  EXPECT_THROW(static_cast<void>(view.select(0, 4)), Error);
  EXPECT_THROW(static_cast<void>(view.reshape({5, 5})), Error);
  EXPECT_THROW(static_cast<void>(view.transpose(0, 1).reshape({24})), Error);
  const std::array<std::int64_t, 2> negative = {6, -1};
  EXPECT_THROW(TensorView(data.data(), DType::f32, {4, 6}, negative), Error);
  const std::array<std::int64_t, 2> wide = {kBig, kBig << 22};
  EXPECT_THROW(TensorView(data.data(), DType::f32, {4, 6}, wide), Error);
  const std::array<std::int64_t, 1> short_strides = {1};
  EXPECT_THROW(TensorView(data.data(), DType::f32, {4, 6}, short_strides), Error);
}

TEST(TensorView, EmptyViewsNeverOverflow) {
  const TensorView view(nullptr, DType::f32, {0, kBig, kBig});
  EXPECT_TRUE(view.is_dense());
  EXPECT_EQ(view.slice(1, kBig - 1, 1).elements(), 0);
  const std::array<std::int64_t, 2> repeated = {0, 0};
  EXPECT_THROW(TensorView(nullptr, DType::f32, {kBig, kBig}, repeated),
               Error);  // more bytes() than 64 bits count
}

TEST(TensorView, PhantomHasShapeButNoStorage) {
  const TensorView view(nullptr, DType::bf16, {131072, 151936});
  const TensorView part = view.slice(0, 100'000, 4096).select(0, 4095);
  EXPECT_EQ(part.raw(), nullptr);
  EXPECT_EQ(part.shape(), (Shape{151936}));
}

TEST(TensorView, AddressesPastTwoToTheThirtyOneElements) {
  // Address space only: two pages of it are ever touched.
  constexpr std::int64_t kRows = 3;
  constexpr std::int64_t kStride = (std::int64_t{1} << 31) + 64;
  const auto bytes = static_cast<std::size_t>(kRows * kStride);
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const std::array<std::int64_t, 2> strides = {kStride, 1};
  const TensorView view(memory, DType::u8, {kRows, 64}, strides);
  const TensorView last = view.select(0, 2);
  last.data<std::uint8_t>()[63] = 42;
  EXPECT_EQ(view.offset(2, 63), 2 * kStride + 63);
  EXPECT_EQ(static_cast<std::uint8_t*>(memory)[2 * kStride + 63], 42);
  munmap(memory, bytes);
}

}  // namespace
}  // namespace headroom
