#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "headroom/cpu.h"
#include "headroom/ops.h"
#include "memory/rehearsed.h"

namespace headroom {
namespace {

TEST(RandomFill, SameBitsOnAnyThreadCount) {
  std::vector<float> expected;
  const auto program = [&](Context& context) {
    context.phase(Phase::step, [&] {
      const Tensor tensor = context.allocate({.name = "tensor", .shape = {100'003}});
      random_fill(context, tensor, Random(3), -2, 5);
      context.run([&](const Stream&) {
        const float* data = tensor.data<float>();
        if (expected.empty()) expected.assign(data, data + 100'003);
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), data));
      });
    });
  };
  for (const int threads : {1, 2, 4}) {
    CpuBackend backend(threads);
    Context context(backend, rehearse(program));
    program(context);
  }
  ASSERT_EQ(expected.size(), 100'003U);
  const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
  EXPECT_GE(*low, -2);
  EXPECT_LE(*high, 5);
  EXPECT_LT(*low, -1.99F);
  EXPECT_GT(*high, 4.99F);
  EXPECT_EQ(expected[7], static_cast<float>(std::fma(Random(3).uniform(7), 7.0, -2.0)));
}

TEST(RandomFill, SixteenBitsAreF32Rounded) {
  run_rehearsed([&](Context& context) {
    context.phase(Phase::step, [&] {
      const Tensor wide = context.allocate({.name = "wide", .shape = {1000}});
      const Tensor narrow = context.allocate({.name = "narrow", .dtype = DType::bf16, .shape = {1000}});
      for (const Tensor* tensor : {&wide, &narrow}) random_fill(context, *tensor, Random(3), -2, 5);
      context.run([&](const Stream&) {
        for (int i = 0; i < 1000; ++i) {
          EXPECT_EQ(narrow.data<BFloat16>()[i].bits, BFloat16(wide.data<float>()[i]).bits);
        }
      });
    });
  });
}

TEST(RandomFill, APartHasTheBitsOfTheWhole) {
  run_rehearsed([&](Context& context) {
    context.phase(Phase::step, [&] {
      const Tensor whole = context.allocate({.name = "whole", .shape = {1000}});
      const Tensor part = context.allocate({.name = "part", .shape = {300}});
      random_fill(context, whole, Random(3), -2, 5);
      random_fill(context, part, Random(3), -2, 5, 613);
      context.run([&](const Stream&) {
        for (int i = 0; i < 300; ++i) EXPECT_EQ(part.data<float>()[i], whole.data<float>()[613 + i]);
      });
    });
  });
}

}  // namespace
}  // namespace headroom
