#include "headroom/parallel/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "parallel/drawn.h"

namespace headroom {
namespace {

AttentionProblem causal(std::int64_t seq) {
  AttentionProblem problem{.seq_q = seq, .seq_k = seq, .heads_q = 4, .heads_kv = 2, .head_dim = 8};
  problem.mask.causal = true;
  return problem;
}

TEST(Partition, HoldsEveryPositionOnce) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    const DrawnRing drawn = draw_ring(seed);
    SCOPED_TRACE(drawn.name());
    const AttentionProblem& problem = drawn.attention.problem;
    const AttentionCaseLists lists = attention_case_lists(drawn.attention);
    const Partition partition = make_partition(drawn.kind, drawn.ranks, problem, lists.views(problem));
    ASSERT_EQ(partition.ranks(), drawn.ranks);
    std::vector<int> held(static_cast<std::size_t>(problem.seq_k));
    for (const std::vector<Piece>& pieces : partition.pieces) {
      std::int64_t before = -1;
      for (const Piece& piece : pieces) {
        EXPECT_FALSE(piece.empty());
        EXPECT_GT(piece.begin, before);  // apart from the piece before it: neighbours are one piece
        before = piece.end;
        for (std::int64_t p = piece.begin; p < piece.end; ++p) ++held[static_cast<std::size_t>(p)];
        if (problem.mask.block_rows > 0) {
          EXPECT_EQ(piece.begin % problem.mask.block_rows, 0);
          EXPECT_EQ(piece.begin % problem.mask.block_columns, 0);
        }
      }
    }
    EXPECT_THAT(held, testing::Each(1));
  }
}

TEST(Partition, LengthsThatDoNotDivide) {
  using Pieces = std::vector<std::vector<Piece>>;
  EXPECT_EQ(make_partition(PartitionKind::contiguous, 3, causal(10), {}).pieces,
            (Pieces{{{0, 3}}, {{3, 6}}, {{6, 10}}}));
  EXPECT_EQ(make_partition(PartitionKind::zigzag, 2, causal(10), {}).pieces,
            (Pieces{{{0, 2}, {7, 10}}, {{2, 7}}}));
  EXPECT_EQ(make_partition(PartitionKind::contiguous, 4, causal(2), {}).pieces,
            (Pieces{{}, {{0, 1}}, {}, {{1, 2}}}));
  EXPECT_EQ(make_partition(PartitionKind::zigzag, 3, causal(0), {}).pieces, (Pieces{{}, {}, {}}));
}

TEST(Partition, ZigzagBalancesCausalWork) {
  for (const int ranks : {2, 4, 8, 16}) {
    for (const std::int64_t seq : {8192, 8209}) {
      const AttentionProblem problem = causal(seq);
      const Partition partition = make_partition(PartitionKind::zigzag, ranks, problem, {});
      double most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        double work = 0;
        for (const Piece& piece : partition.pieces[static_cast<std::size_t>(rank)]) {
          work += static_cast<double>(count_pairs(problem, {}, piece, {0, seq}));
        }
        most = std::max(most, work);
      }
      const double mean = static_cast<double>(count_pairs(problem, {}, {0, seq}, {0, seq})) / ranks;
      EXPECT_LE(most, 1.03 * mean) << ranks << " ranks, " << seq;
    }
  }
}

// Both in work and in tokens, on lists of documents from even to one that dominates.
TEST(Partition, BalancedBalancesDocuments) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Draw draw(seed);
    AttentionCase drawn;
    drawn.problem = causal(0);
    for (int i = 0; i < 20; ++i) {
      const std::int64_t length = 1 + draw.below(1 << (4 + draw.below(8)));
      drawn.document_lengths.push_back(seed % 4 == 0 && i == 7 ? 6000 : length);
      drawn.problem.seq_k += drawn.document_lengths.back();
    }
    drawn.problem.seq_q = drawn.problem.seq_k;
    drawn.problem.mask.max_documents = 20;
    const AttentionCaseLists lists = attention_case_lists(drawn);
    const AttentionForward views = lists.views(drawn.problem);
    constexpr int kRanks = 8;
    const Partition partition = make_partition(PartitionKind::balanced, kRanks, drawn.problem, views);
    const Piece all{0, drawn.problem.seq_k};
    const double mean_work = static_cast<double>(count_pairs(drawn.problem, views, all, all)) / kRanks;
    const double mean_tokens = static_cast<double>(drawn.problem.seq_k) / kRanks;
    for (int rank = 0; rank < kRanks; ++rank) {
      double work = 0;
      for (const Piece& piece : partition.pieces[static_cast<std::size_t>(rank)]) {
        work += static_cast<double>(count_pairs(drawn.problem, views, piece, all));
      }
      EXPECT_NEAR(work / mean_work, 1, 0.1) << "documents " << seed << ", rank " << rank;
      EXPECT_NEAR(static_cast<double>(partition.tokens(rank)) / mean_tokens, 1, 0.1) << seed;
    }
  }
}

TEST(Partition, NamesAndMistakes) {
  for (const PartitionKind kind :
       {PartitionKind::contiguous, PartitionKind::zigzag, PartitionKind::balanced}) {
    EXPECT_EQ(parse_partition(name(kind)), kind);
  }
  EXPECT_THROW(static_cast<void>(parse_partition("striped")), Error);
  EXPECT_THROW(static_cast<void>(make_partition(PartitionKind::zigzag, 0, causal(8), {})), Error);
}

}  // namespace
}  // namespace headroom
