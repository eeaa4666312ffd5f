// What ranks read under dilated masks is found once for all that lie alike: here every pair of ranks is
// compared with the functions of the mask itself.
#include "parallel/ring_reads.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/drawn.h"
#include "parallel/rows_read.h"

namespace headroom {
namespace {

// Dilated patterns over sequences in which many ranks lie alike, and pieces need not divide.
DrawnRing draw_dilated(std::uint64_t seed) {
  Draw draw(seed);
  DrawnRing drawn;
  AttentionProblem& problem = drawn.attention.problem;
  problem.batch = 1 + draw.below(2);
  drawn.ranks = static_cast<int>(2 + draw.below(15));
  drawn.kind = static_cast<PartitionKind>(draw.below(3));
  problem.seq_q = problem.seq_k = draw.coin() ? 2 * drawn.ranks * (1 + draw.below(40)) : 1 + draw.below(1200);
  problem.heads_kv = 1 + draw.below(4);
  problem.heads_q = 2 * problem.heads_kv * (1 + draw.below(3));
  problem.head_dim = 8;
  Mask& mask = problem.mask;
  mask.causal = draw.coin();
  if (draw.coin()) mask.window_left = draw.below(200);
  if (draw.coin()) mask.window_right = draw.below(200);
  mask.mix_dilations = draw.coin();
  mask.dilation_count = static_cast<int>(1 + draw.below(2));
  for (int i = 0; i < mask.dilation_count; ++i) {
    mask.dilations[static_cast<std::size_t>(i)] = {1 + draw.below(draw.coin() ? 60 : 1500),
                                                   1 + draw.below(9)};
  }
  return drawn;
}

struct Rows {
  Piece hull{Mask::kUnlimited, 0};
  std::int64_t count = 0;
};
Rows rows_of(const Transfer& transfer) {
  Rows rows;
  for (const std::vector<RowRun>& runs : transfer.rows) {
    for (const RowRun& run : runs) {
      rows.hull.begin = std::min(rows.hull.begin, run.begin);
      rows.hull.end = std::max(rows.hull.end, run.begin + (run.count - 1) * run.stride + 1);
      rows.count += run.count;
    }
  }
  return rows;
}

TEST(RingReads, OfDilatedMasksAreThoseOfEveryPair) {
  std::int64_t compared = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const DrawnRing drawn = draw_dilated(seed);
    const AttentionProblem& problem = drawn.attention.problem;
    SCOPED_TRACE(drawn.name());
    const Partition partition = make_partition(drawn.kind, drawn.ranks, problem, {});
    const AttentionForward no_lists;
    RingReads reads(problem, no_lists, partition);
    RingReads::Largest largest;
    for (int reader = 0; reader < drawn.ranks; ++reader) {
      const std::vector<Piece>& queries = partition.pieces[static_cast<std::size_t>(reader)];
      for (int owner = 0; owner < drawn.ranks; ++owner) {
        if (owner == reader) continue;
        std::vector<ChunkPair> expected;
        for (const Piece& part : reads.parts(owner)) {
          for (std::size_t q = 0; q < queries.size(); ++q) {
            for (const Piece& keys : intervals_read(problem, {}, queries[q], part)) {
              const std::int64_t pairs = count_pairs(problem, {}, queries[q], keys);
              if (pairs > 0) expected.push_back({static_cast<std::int64_t>(q), queries[q], keys, pairs});
            }
          }
        }
        std::vector<ChunkPair> found;
        for (const RingReads::Read& read : reads.between(reader, owner)) {
          for (const ChunkPair& pair : reads.pairs(read)) found.push_back(pair);
          const Rows rows = rows_of(reads.transfer(read, reader, owner));
          EXPECT_EQ(read.sent, rows.hull);
          EXPECT_EQ(read.row_count, rows.count);
          largest.take(rows.hull.size(), rows.count);
          ++compared;
        }
        // Of a part that is read in two transfers, pairs come by transfer.
        const auto by_place = [](const ChunkPair& a, const ChunkPair& b) {
          return std::pair(a.keys.begin, a.query_piece) < std::pair(b.keys.begin, b.query_piece);
        };
        std::ranges::sort(expected, by_place);
        std::ranges::sort(found, by_place);
        ASSERT_EQ(found.size(), expected.size()) << reader << " of " << owner;
        for (std::size_t i = 0; i < found.size(); ++i) {
          EXPECT_EQ(found[i].query_piece, expected[i].query_piece);
          EXPECT_EQ(found[i].queries, expected[i].queries);
          EXPECT_EQ(found[i].keys, expected[i].keys);
          EXPECT_EQ(found[i].pairs, expected[i].pairs);
        }
      }
    }
    const RingReads::Largest most = reads.largest();
    EXPECT_EQ(most.keys, largest.keys);
    EXPECT_EQ(most.rows, largest.rows);
    if (HasFailure()) return;
  }
  EXPECT_GT(compared, 10'000);
}

}  // namespace
}  // namespace headroom
