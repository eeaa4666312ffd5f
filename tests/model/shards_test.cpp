#include "headroom/model/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "headroom/core/error.h"
#include "model/small_models.h"

namespace headroom {
namespace {

using testing::Each;
using testing::ElementsAre;

// Every element is one rank's, and a rank's own buffer has its slices without a gap.
void expect_division(const ParameterTable& table, Sharding sharding, int ranks,
                     LossRanks loss_ranks = LossRanks::tokens) {
  const Shards shards(table, sharding, ranks, loss_ranks);
  EXPECT_EQ(shards.flat_elements(), table.elements());
  std::vector<int> owners(static_cast<std::size_t>(table.elements()));
  for (int rank = 0; rank < ranks; ++rank) {
    std::int64_t own = 0;
    for (std::size_t unit = 0; unit < shards.slices(rank).size(); ++unit) {
      const ShardSlice slice = shards.slice(rank, unit);
      EXPECT_EQ(slice.own_begin, own);
      EXPECT_EQ(slice.flat_begin % ParameterTable::kAlignment, 0);
      EXPECT_EQ(slice.elements, shards.counts(unit)[static_cast<std::size_t>(rank)]);
      own += slice.elements;
      for (std::int64_t i = 0; i < slice.elements; ++i)
        ++owners[static_cast<std::size_t>(slice.flat_begin + i)];
    }
    EXPECT_EQ(shards.elements(rank), own);
    EXPECT_GT(own, 0);
  }
  EXPECT_THAT(owners, Each(1)) << name(sharding) << ", " << ranks << " ranks";
}

TEST(Shards, DivideEveryElementOnce) {
  for (const bool tied : {false, true}) {
    const ParameterTable table(small_model(tied, true));
    for (int ranks = 2; ranks <= 9; ++ranks) {
      for (const Sharding sharding : {Sharding::optimizer, Sharding::full})
        expect_division(table, sharding, ranks);
    }
  }
}

// The output weight is cut between rows, and every word is one rank's.
TEST(Shards, OfADividedVocabularyAreRows) {
  for (const std::int64_t vocab : {211, 67, 5}) {
    for (const bool tied : {false, true}) {
      ModelConfig config = small_model(tied, true);
      config.vocab = vocab;
      const ParameterTable table(config);
      for (int ranks = 2; ranks <= 9; ++ranks) {
        expect_division(table, Sharding::full, ranks, LossRanks::vocabulary);
        const Shards shards(table, Sharding::full, ranks, LossRanks::vocabulary);
        std::int64_t words = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const VocabularySlice slice = vocabulary_slice(table, rank, ranks);
          const std::size_t unit = tied ? 0 : shards.unit_begins().size() - 2;
          const ShardSlice own = shards.slice(rank, unit);
          EXPECT_EQ(slice.first, words);
          EXPECT_EQ(own.flat_begin, table.output().offset + slice.first * config.hidden);
          EXPECT_GE(own.elements, slice.words * config.hidden);
          EXPECT_LT(own.elements, slice.words * config.hidden + ParameterTable::kAlignment);
          words += slice.words;
        }
        EXPECT_EQ(words, vocab);
      }
    }
  }
}

TEST(Shards, OfAnUndividedStateAreWhole) {
  const ParameterTable table(small_model(true, true));
  const Shards shards(table, Sharding::none, 3);
  EXPECT_FALSE(shards.divided());
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(shards.slices(rank).size(), 1U);
    EXPECT_EQ(shards.elements(rank), table.elements());
  }
}

TEST(Shards, AreRefusedWhereARankWouldHaveNothing) {
  const ParameterTable table(small_model(true, true));
  const auto most = static_cast<int>(table.elements() / ParameterTable::kAlignment);
  static_cast<void>(Shards(table, Sharding::optimizer, most));
  EXPECT_THROW(static_cast<void>(Shards(table, Sharding::optimizer, most + 1)), Error);
}

TEST(Shards, OverlapsAreThePartsOfSlices) {
  const std::vector<ShardSlice> slices = {{.flat_begin = 64, .own_begin = 0, .elements = 64},
                                          {.flat_begin = 256, .own_begin = 64, .elements = 128}};
  std::vector<std::int64_t> found;
  for_each_overlap(slices, 100, 300, [&](std::int64_t flat, std::int64_t own, std::int64_t elements) {
    found.insert(found.end(), {flat, own, elements});
  });
  EXPECT_THAT(found, ElementsAre(100, 36, 28, 256, 64, 44));
}

}  // namespace
}  // namespace headroom
