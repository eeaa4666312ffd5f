#include "headroom/ops/embedding.h"

#include "ops/cases.h"

namespace headroom {
namespace {

struct Sizes {
  std::int64_t tokens;
  std::int64_t dim;
  std::int64_t vocabulary;
};

struct Results {
  Values x;
  Values dtable;
};

// Few words, most of them often.
std::vector<std::int32_t> some_ids(Sizes sizes) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(sizes.tokens));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto most = static_cast<std::uint64_t>(i % 3 == 0 ? std::min<std::int64_t>(2, sizes.vocabulary)
                                                            : sizes.vocabulary);
    ids[i] = static_cast<std::int32_t>(Random(6).below(i, most));
  }
  return ids;
}

template <class Real>
Values plain_gradient(Sizes sizes, const std::vector<std::int32_t>& ids, const Values& dx,
                      const Values& before, std::optional<std::int64_t> pad_token = {}) {
  std::vector<Real> sums(before.begin(), before.end());
  for (std::size_t t = 0; t < ids.size(); ++t) {
    if (ids[t] == pad_token) continue;
    for (std::int64_t i = 0; i < sizes.dim; ++i) {
      sums[static_cast<std::size_t>(ids[t] * sizes.dim + i)] +=
          static_cast<Real>(dx[t * static_cast<std::size_t>(sizes.dim) + static_cast<std::size_t>(i)]);
    }
  }
  return {sums.begin(), sums.end()};
}

Results run(Sizes sizes, const std::vector<std::int32_t>& ids, DType dtype, std::int64_t gap, int threads,
            std::optional<std::int64_t> pad_token = {}) {
  Results results;
  run_phase(threads, [&](Context& context) {
    const Shape table_shape{sizes.vocabulary, sizes.dim};
    const Placed table(context, table_shape, dtype, random_values(table_shape.elements(), dtype, 1), gap);
    const Placed x(context, {sizes.tokens, sizes.dim}, dtype, 2 * gap);
    const PlacedIds places(context, ids);
    embedding_forward(context, table.view, places, x.view);
    const Placed dx(context, {sizes.tokens, sizes.dim}, dtype,
                    random_values(sizes.tokens * sizes.dim, dtype, 2), gap);
    const Placed dtable(context, table_shape, DType::f32,
                        random_values(table_shape.elements(), DType::f32, 3), gap);
    embedding_backward(context, places, dx.view, dtable.view, pad_token);
    results = {x.read(context), dtable.read(context)};
  });
  return results;
}

class Embedding : public OpsLevels {};
INSTANTIATE_TEST_SUITE_P(Simd, Embedding, all_levels());

TEST_P(Embedding, RowsOfTheTable) {
  for (const DType dtype : kFloating) {
    for (const std::int64_t dim : kOddSizes) {
      const Sizes sizes{97, dim, 29};
      const std::vector<std::int32_t> ids = some_ids(sizes);
      const Results actual = run(sizes, ids, dtype, dim == 63 ? 4 : 0, 2);
      const Values table = random_values(sizes.vocabulary * dim, dtype, 1);
      Values expected;
      for (const std::int32_t id : ids) {
        expected.insert(expected.end(), table.begin() + id * dim, table.begin() + (id + 1) * dim);
      }
      EXPECT_EQ(actual.x, expected);
      const Values dx = random_values(sizes.tokens * dim, dtype, 2);
      const Values before = random_values(sizes.vocabulary * dim, DType::f32, 3);
      // Tokens in order: the very bits of the plain loop.
      EXPECT_EQ(actual.dtable, plain_gradient<float>(sizes, ids, dx, before));
      expect_close(actual.dtable, plain_gradient<float>(sizes, ids, dx, before),
                   plain_gradient<double>(sizes, ids, dx, before), 3, DType::f32, "dtable");
    }
  }
}

TEST_P(Embedding, SameBitsOnAnyThreadCount) {
  const Sizes sizes{500, 1100, 40};
  const std::vector<std::int32_t> ids = some_ids(sizes);
  const Results one = run(sizes, ids, DType::bf16, 0, 1);
  for (const int threads : {2, 3}) {
    const Results more = run(sizes, ids, DType::bf16, 0, threads);
    EXPECT_EQ(one.x, more.x);
    EXPECT_EQ(one.dtable, more.dtable);
  }
}

TEST_P(Embedding, ThePadTokenIsLookedUpAndGetsNoGradient) {
  const Sizes sizes{97, 33, 29};
  const std::vector<std::int32_t> ids = some_ids(sizes);
  for (const std::int64_t pad_token : {0, 1, 28}) {
    const Results actual = run(sizes, ids, DType::bf16, 0, 2, pad_token);
    EXPECT_EQ(actual.x, run(sizes, ids, DType::bf16, 0, 2).x);
    const Values dx = random_values(sizes.tokens * sizes.dim, DType::bf16, 2);
    const Values before = random_values(sizes.vocabulary * sizes.dim, DType::f32, 3);
    EXPECT_EQ(actual.dtable, plain_gradient<float>(sizes, ids, dx, before, pad_token));
  }
  EXPECT_THROW(static_cast<void>(run(sizes, ids, DType::f32, 0, 2, 29)), Error);
}

TEST_P(Embedding, NoTokens) {
  const Results results = run({0, 8, 3}, {}, DType::f32, 0, 2);
  EXPECT_TRUE(results.x.empty());
  EXPECT_EQ(results.dtable, random_values(24, DType::f32, 3));
}

TEST_P(Embedding, IdsOutsideOfTheTable) {
  for (const std::int32_t wrong : {-1, 29}) {
    std::vector<std::int32_t> ids = some_ids({97, 8, 29});
    ids[57] = wrong;
    if (backend_under_test(1)->device().kind == DeviceKind::cuda) {
      // A kernel throws nothing: the row is NaN, and the others are what they are without it.
      const Results results = run({97, 8, 29}, ids, DType::f32, 0, 2);
      EXPECT_TRUE(std::isnan(results.x[57 * 8]));
      const Values dx = random_values(97 * 8, DType::f32, 2);
      const Values before = random_values(29 * 8, DType::f32, 3);
      Values without = dx;
      std::fill_n(without.begin() + 57 * 8, 8, 0.0);
      ids[57] = 0;
      EXPECT_EQ(results.dtable, plain_gradient<float>({97, 8, 29}, ids, without, before, {}));
      continue;
    }
    try {
      static_cast<void>(run({97, 8, 29}, ids, DType::f32, 0, 2));
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.what(),
                fmt::format("token 57 has id {}; the vocabulary has 29 entries, from 0", wrong));
    }
  }
}

}  // namespace
}  // namespace headroom
