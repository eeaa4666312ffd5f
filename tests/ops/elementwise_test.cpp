#include "headroom/ops/elementwise.h"

#include <limits>

#include "ops/cases.h"

namespace headroom {
namespace {

class Elementwise : public OpsLevels {};
INSTANTIATE_TEST_SUITE_P(Simd, Elementwise, all_levels());

TEST_P(Elementwise, AddRoundsOnce) {
  for (const DType dtype : kFloating) {
    for (const std::int64_t dim : kOddSizes) {
      for (const std::int64_t gap : {0, 3}) {
        for (const bool in_place : {false, true}) {
          const Shape shape{gap == 0 ? 77 : 11, dim};
          const Values left = random_values(shape.elements(), dtype, 1);
          const Values right = random_values(shape.elements(), dtype, 2);
          Values expected = left;
          for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = rounded(left[i] + right[i], dtype);
          run_phase(1 + static_cast<int>(dim % 3), [&](Context& context) {
            const Placed a(context, shape, dtype, left, gap);
            const Placed b(context, shape, dtype, right, 2 * gap);
            const Placed y(context, shape, dtype, gap);
            const Placed& result = in_place ? a : y;
            add(context, a.view, b.view, result.view);
            const Values actual = result.read(context);
            if (context.phantom()) return;
            EXPECT_EQ(actual, expected);
          });
        }
      }
    }
  }
}

TEST_P(Elementwise, FillAndZero) {
  for (const DType dtype : kFloating) {
    for (const std::int64_t count :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{65}, std::int64_t{70'001}}) {
      run_phase(2, [&](Context& context) {
        const Placed x(context, {count}, dtype);
        fill(context, x.view, 0.1F);
        const Values filled = x.read(context);
        zero(context, x.view);
        const Values zeros = x.read(context);
        if (context.phantom()) return;
        EXPECT_EQ(filled, Values(static_cast<std::size_t>(count), rounded(0.1, dtype)));
        EXPECT_EQ(zeros, Values(static_cast<std::size_t>(count), 0.0));
      });
    }
    for (const std::int64_t dim : kOddSizes) {
      const Shape shape{11, dim};
      const Values values = random_values(shape.elements() + 3 * shape[0], dtype, 5);
      run_phase(2, [&](Context& context) {
        const Placed whole(context, {shape[0], dim + 3}, dtype, values);
        zero(context, whole.view.slice(1, 0, dim));
        const Values left = whole.read(context);
        if (context.phantom()) return;
        for (std::size_t i = 0; i < left.size(); ++i) {
          const bool inside = static_cast<std::int64_t>(i) % (dim + 3) < dim;
          ASSERT_EQ(left[i], inside ? 0.0 : values[i]) << i << " of rows of " << dim;
        }
      });
    }
  }
}

TEST_P(Elementwise, ConvertRoundsToNearest) {
  for (const DType from : kFloating) {
    for (const DType to : kFloating) {
      for (const std::int64_t count : kOddSizes) {
        Values values = random_values(count, from, 4);
        values[0] = std::numeric_limits<double>::infinity();
        Values expected = values;
        for (double& value : expected) value = rounded(value, to);
        const Values three = random_values(3 * count, from, 6);
        Values three_expected = three;
        for (double& value : three_expected) value = rounded(value, to);
        run_phase(2, [&](Context& context) {
          const Placed source(context, {count}, from, values);
          const Placed target(context, {count}, to);
          convert(context, source.view, target.view);
          const Values actual = target.read(context);
          const Placed rows(context, {3, count}, from, three, 5);
          const Placed apart(context, {3, count}, to, 2);
          convert(context, rows.view, apart.view);
          const Values placed = apart.read(context);
          if (context.phantom()) return;
          EXPECT_EQ(actual, expected) << name(from) << " to " << name(to);
          EXPECT_EQ(placed, three_expected) << name(from) << " to " << name(to);
        });
      }
    }
  }
}

TEST(ElementwiseArguments, NameWhatIsWrong) {
  Context context(DeviceDescription{.name = "made up"});
  const auto message = [&](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const TensorView a(nullptr, DType::f32, {4, 8});
  const TensorView other(nullptr, DType::bf16, {4, 8});
  const TensorView gaps = TensorView(nullptr, DType::f32, {4, 16}).slice(1, 0, 8);
  const TensorView ids(nullptr, DType::i32, {4, 8});
  EXPECT_EQ(message([&] { add(context, a, a, a); }), "");
  EXPECT_EQ(message([&] { add(context, a, other, a); }), "add: b holds bf16, not f32");
  EXPECT_EQ(message([&] { convert(context, a, other); }), "");
  EXPECT_EQ(message([&] { convert(context, gaps, other); }), "");
  EXPECT_EQ(message([&] { convert(context, gaps.transpose(0, 1), other.transpose(0, 1)); }),
            "convert: from has stride 16 inside a row, not 1");
  EXPECT_EQ(message([&] { zero(context, gaps); }), "");
  EXPECT_EQ(message([&] { zero(context, ids); }), "");
  EXPECT_EQ(message([&] { zero(context, ids.slice(1, 0, 4)); }),
            "zero: the view, which is not dense, holds i32, not f32, bf16 or f16");
  EXPECT_EQ(message([&] { fill(context, ids, 1); }), "fill: the view holds i32, not f32, bf16 or f16");
}

}  // namespace
}  // namespace headroom
