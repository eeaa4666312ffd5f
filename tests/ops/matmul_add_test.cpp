#include "headroom/ops/matmul.h"
#include "ops/cases.h"

namespace headroom {
namespace {

struct Sizes {
  std::int64_t m, n, k;
};

template <class Real>
Values plain(Sizes sizes, const Values& a, const Values& b, const Values& addend) {
  Values result;
  for (std::int64_t i = 0; i < sizes.m; ++i) {
    for (std::int64_t j = 0; j < sizes.n; ++j) {
      Real sum = 0;
      for (std::int64_t k = 0; k < sizes.k; ++k) {
        sum += static_cast<Real>(a[static_cast<std::size_t>(i * sizes.k + k)]) *
               static_cast<Real>(b[static_cast<std::size_t>(k * sizes.n + j)]);
      }
      result.push_back(sum + static_cast<Real>(addend[static_cast<std::size_t>(i * sizes.n + j)]));
    }
  }
  return result;
}

class MatmulAdd : public OpsLevels {};
INSTANTIATE_TEST_SUITE_P(Simd, MatmulAdd, all_levels());

TEST_P(MatmulAdd, IsTheProductAndTheAddend) {
  for (const DType dtype : kFloating) {
    for (const Sizes sizes : {Sizes{1, 1, 1}, {5, 9, 33}, {64, 40, 128}}) {
      for (const std::int64_t gap : {0, 3}) {
        const Values a = random_values(sizes.m * sizes.k, dtype, 1);
        const Values b = random_values(sizes.k * sizes.n, dtype, 2);
        const Values addend = random_values(sizes.m * sizes.n, dtype, 3);
        Values result;
        run_phase(2, [&](Context& context) {
          const Placed left(context, {sizes.m, sizes.k}, dtype, a, gap);
          const Placed right(context, {sizes.k, sizes.n}, dtype, b);
          const Placed added(context, {sizes.m, sizes.n}, dtype, addend, 2 * gap);
          const Placed c(context, {sizes.m, sizes.n}, dtype, gap);
          matmul_add(context, left.view, right.view, added.view, c.view);
          result = c.read(context);
          EXPECT_EQ(added.read(context), context.phantom() ? Values() : addend);
        });
        // A CPU rounds twice.
        expect_close(result, rounded(plain<float>(sizes, a, b, addend), dtype),
                     plain<double>(sizes, a, b, addend), 3, dtype,
                     fmt::format("{} {} x {} x {} gap {}", name(dtype), sizes.m, sizes.n, sizes.k, gap));
      }
    }
  }
}

}  // namespace
}  // namespace headroom
