// The schedule against the mask itself, element by element.
#include "headroom/parallel/ring_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "headroom/core/checked.h"
#include "parallel/drawn.h"

namespace headroom {
namespace {

RingSchedule make_schedule(const AttentionCase& c, int ranks, PartitionKind kind) {
  const AttentionCaseLists lists = attention_case_lists(c);
  const AttentionForward views = lists.views(c.problem);
  return {c.problem, views, make_partition(kind, ranks, c.problem, views)};
}

AttentionCase sized(std::int64_t seq, std::int64_t heads_q, std::int64_t heads_kv) {
  AttentionCase c;
  c.problem = {.seq_q = seq,
               .seq_k = seq,
               .heads_q = heads_q,
               .heads_kv = heads_kv,
               .head_dim = 8,
               .dtype = DType::bf16};
  return c;
}

bool contains(const std::vector<RowRun>& runs, std::int64_t row) {
  return std::ranges::any_of(runs, [&](const RowRun& run) {
    const std::int64_t distance = row - run.begin;
    return distance >= 0 && distance % run.stride == 0 && distance / run.stride < run.count;
  });
}

// The mask of the whole sequence, and what of it each rank holds.
struct Truth {
  Truth(const DrawnRing& drawn, const Partition& partition)
      : problem(drawn.attention.problem), lists(attention_case_lists(drawn.attention)) {
    owner.resize(static_cast<std::size_t>(problem.seq_k));
    for (int rank = 0; rank < partition.ranks(); ++rank) {
      for (const Piece& piece : partition.pieces[static_cast<std::size_t>(rank)]) {
        for (std::int64_t p = piece.begin; p < piece.end; ++p) owner[static_cast<std::size_t>(p)] = rank;
      }
    }
  }
  // body(batch, head, query, key), once for each pattern in which they attend.
  template <class Body>
  void for_each_pair(const Body& body) const {
    if (problem.seq_q == 0) return;
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      for (std::int64_t h = 0; h < problem.heads_q; ++h) {
        for (int pattern = 0; pattern < problem.mask.patterns_per_head(); ++pattern) {
          const MaskView view = mask_view(problem, lists.views(problem), b, h, pattern);
          for (std::int64_t q = 0; q < problem.seq_q; ++q) {
            for (std::int64_t k = 0; k < problem.seq_k; ++k) {
              if (view.attends(q, k)) body(b, h, q, k);
            }
          }
        }
      }
    }
  }

  AttentionProblem problem;
  AttentionCaseLists lists;
  std::vector<int> owner;
};

bool covers(const ChunkPair& pair, std::int64_t q, std::int64_t k) {
  return pair.queries.begin <= q && q < pair.queries.end && pair.keys.begin <= k && k < pair.keys.end;
}

// Every pair that attends is computed once, by the rank of its query; the key was sent there.
TEST(RingSchedule, ComputesEveryPairOnceAndSendsItsKey) {
  for (std::uint64_t seed = 1; seed <= 250; ++seed) {
    const DrawnRing drawn = draw_ring(seed);
    SCOPED_TRACE(fmt::format("draw {}: {}", seed, drawn.name()));
    const RingSchedule schedule = make_schedule(drawn.attention, drawn.ranks, drawn.kind);
    const Truth truth(drawn, schedule.partition());
    std::vector<std::int64_t> pairs(static_cast<std::size_t>(drawn.ranks));
    truth.for_each_pair([&](std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k) {
      const int reader = truth.owner[static_cast<std::size_t>(q)];
      const int owner = truth.owner[static_cast<std::size_t>(k)];
      ++pairs[static_cast<std::size_t>(reader)];
      std::int64_t computed = 0;
      for (const ChunkPair& pair : schedule.local(reader)) computed += covers(pair, q, k);
      for (const Transfer& transfer : schedule.transfers()) {
        if (transfer.reader != reader || transfer.owner != owner) continue;
        for (const ChunkPair& pair : transfer.pairs) {
          if (!covers(pair, q, k)) continue;
          ++computed;
          const std::int64_t kv = h / (truth.problem.heads_q / truth.problem.heads_kv);
          EXPECT_TRUE(transfer.rows.empty() ||
                      contains(transfer.rows[static_cast<std::size_t>(b * truth.problem.heads_kv + kv)], k));
        }
      }
      ASSERT_EQ(computed, 1) << "query " << q << " key " << k << " head " << h;
    });
    for (int rank = 0; rank < drawn.ranks; ++rank) {
      EXPECT_EQ(schedule.pairs(rank), pairs[static_cast<std::size_t>(rank)]) << rank;
    }
    if (HasFailure()) break;
  }
}

// No row is sent that its reader does not read. Of a batch without dilation the sequences share an interval
// and all heads its rows, so that there some sequence and head has to read it; block lists send whole blocks.
TEST(RingSchedule, SendsNoRowThatNobodyReads) {
  for (std::uint64_t seed = 1; seed <= 250; ++seed) {
    const DrawnRing drawn = draw_ring(seed);
    SCOPED_TRACE(fmt::format("draw {}: {}", seed, drawn.name()));
    const RingSchedule schedule = make_schedule(drawn.attention, drawn.ranks, drawn.kind);
    const Truth truth(drawn, schedule.partition());
    const AttentionProblem& problem = truth.problem;
    const std::int64_t block = std::max<std::int64_t>(problem.mask.block_columns, 1);
    const bool dilated = problem.mask.dilation_count > 0;
    std::set<std::tuple<int, std::int64_t, std::int64_t>> read;  // reader, sequence and head, block of keys
    truth.for_each_pair([&](std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k) {
      const std::int64_t kv = h / (problem.heads_q / problem.heads_kv);
      read.insert(
          {truth.owner[static_cast<std::size_t>(q)], dilated ? b * problem.heads_kv + kv : 0, k / block});
    });
    if (!dilated && problem.batch > 1) continue;  // an interval may join those of two sequences
    for (const Transfer& transfer : schedule.transfers()) {
      std::int64_t count = 0;
      for (std::int64_t item = 0; item < problem.batch * problem.heads_kv; ++item) {
        for (std::int64_t k = transfer.keys.begin; k < transfer.keys.end; ++k) {
          if (!transfer.rows.empty() && !contains(transfer.rows[static_cast<std::size_t>(item)], k)) continue;
          ++count;
          EXPECT_TRUE(read.contains({transfer.reader, dilated ? item : 0, k / block}))
              << "rank " << transfer.reader << " gets key " << k << " and does not read it";
        }
      }
      EXPECT_EQ(transfer.row_count, count);
      EXPECT_LE(transfer.keys.size(), round_up(divide_up(schedule.partition().most_tokens(), 2), block));
    }
    if (HasFailure()) break;
  }
}

TEST(RingSchedule, ARankSendsAndReceivesOneTransferInASlot) {
  for (std::uint64_t seed = 1; seed <= 250; ++seed) {
    const DrawnRing drawn = draw_ring(seed);
    SCOPED_TRACE(drawn.name());
    const RingSchedule schedule = make_schedule(drawn.attention, drawn.ranks, drawn.kind);
    std::size_t found = 0;
    for (std::int64_t slot = 0; slot < schedule.slots(); ++slot) {
      for (int rank = 0; rank < drawn.ranks; ++rank) {
        if (const Transfer* transfer = schedule.received(rank, slot)) {
          ++found;
          EXPECT_EQ(transfer->reader, rank);
          EXPECT_EQ(transfer, schedule.sent(transfer->owner, slot));
        }
      }
    }
    EXPECT_EQ(found, schedule.transfers().size());
  }
}

std::int64_t all_sent(const RingSchedule& schedule, Pass pass) {
  std::int64_t sum = 0;
  for (int rank = 0; rank < schedule.ranks(); ++rank) sum += schedule.sent_bytes(rank, pass);
  return sum;
}

TEST(RingSchedule, AFullMaskSendsEveryChunkToEveryOtherRank) {
  const RingSchedule schedule = make_schedule(sized(96, 4, 2), 4, PartitionKind::contiguous);
  const std::int64_t chunk_bytes = 24 * 2 * 2 * 8 * 2;  // rows, K and V, heads_kv, head_dim, bf16
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(schedule.sent_bytes(rank, Pass::forward), 3 * chunk_bytes);
    EXPECT_EQ(schedule.sent_bytes(rank, Pass::backward), 3 * chunk_bytes + 2 * 3 * chunk_bytes);  // f32
  }
}

TEST(RingSchedule, CausalSendsForwardAlone) {
  AttentionCase c = sized(96, 4, 2);
  c.problem.mask.causal = true;
  const RingSchedule schedule = make_schedule(c, 4, PartitionKind::contiguous);
  for (const Transfer& transfer : schedule.transfers()) EXPECT_LT(transfer.owner, transfer.reader);
  EXPECT_EQ(schedule.sent_bytes(3, Pass::forward), 0);
}

TEST(RingSchedule, AWindowSendsItsHalo) {
  AttentionCase c = sized(96, 4, 2);
  c.problem.mask.causal = true;
  c.problem.mask.window_left = 5;
  const RingSchedule schedule = make_schedule(c, 4, PartitionKind::contiguous);
  ASSERT_EQ(schedule.transfers().size(), 3U);
  for (const Transfer& transfer : schedule.transfers()) {
    EXPECT_EQ(transfer.reader, transfer.owner + 1);
    EXPECT_EQ(transfer.keys, (Piece{24 * transfer.reader - 5, 24 * transfer.reader}));
  }
}

TEST(RingSchedule, DocumentsSendWhereTheyCrossABorder) {
  AttentionCase c = sized(96, 4, 2);
  c.problem.mask.causal = true;
  c.document_lengths = {24, 20, 14, 38};  // borders at 24, 48, 72: the third and the fourth cross one
  c.problem.mask.max_documents = 4;
  const RingSchedule schedule = make_schedule(c, 4, PartitionKind::contiguous);
  std::map<std::pair<int, int>, Piece> sent;
  for (const Transfer& transfer : schedule.transfers()) {
    const auto [at, first] = sent.insert({{transfer.owner, transfer.reader}, transfer.keys});
    if (!first) at->second.end = transfer.keys.end;
  }
  EXPECT_EQ(sent, (std::map<std::pair<int, int>, Piece>{{{1, 2}, {44, 48}}, {{2, 3}, {58, 72}}}));
}

// One offset for each K/V head: of every rate-th row. Of a group of heads with all offsets: every row.
TEST(RingSchedule, DilationSendsOneRowInRate) {
  for (const std::int64_t rate : {2, 4}) {
    AttentionCase dense = sized(256, 4, 4);
    AttentionCase dilated = dense;
    dilated.problem.mask.dilations[0] = {256, rate};
    dilated.problem.mask.dilation_count = 1;
    const std::int64_t all = all_sent(make_schedule(dense, 4, PartitionKind::contiguous), Pass::forward);
    EXPECT_EQ(all_sent(make_schedule(dilated, 4, PartitionKind::contiguous), Pass::forward) * rate, all);
    dilated.problem.heads_kv = dense.problem.heads_kv = 1;
    EXPECT_EQ(all_sent(make_schedule(dilated, 4, PartitionKind::contiguous), Pass::forward),
              all_sent(make_schedule(dense, 4, PartitionKind::contiguous), Pass::forward));
  }
  AttentionCase local = sized(256, 4, 4);
  local.problem.mask.dilations[0] = {64, 2};  // segments end where chunks end
  local.problem.mask.dilation_count = 1;
  EXPECT_EQ(all_sent(make_schedule(local, 4, PartitionKind::contiguous), Pass::backward), 0);
}

// Communication that a thousand ranks would do is known without them.
TEST(RingSchedule, AThousandRanks) {
  AttentionCase c = sized(1 << 20, 32, 8);
  c.problem.mask.causal = true;
  c.problem.mask.window_left = 4095;
  const RingSchedule schedule = make_schedule(c, 1024, PartitionKind::contiguous);
  EXPECT_EQ(schedule.sent_bytes(512, Pass::forward), 4095 * 2 * 8 * 8 * 2);
}

TEST(RingSchedule, RefusesWhatItCannotDivide) {
  const auto refused = [](const std::function<void(AttentionProblem&)>& change) {
    AttentionProblem problem = sized(64, 2, 2).problem;
    change(problem);
    return ring_supports(problem).reason();
  };
  EXPECT_EQ(refused([](AttentionProblem&) {}), "");
  EXPECT_THAT(refused([](AttentionProblem& p) { p.seq_q = 32; }),
              testing::HasSubstr("as many queries as keys"));
  EXPECT_THAT(refused([](AttentionProblem& p) { p.resume = true; }), testing::HasSubstr("earlier"));
  EXPECT_THAT(refused([](AttentionProblem& p) {
                p.mask.dilations[0] = {16, 2};
                p.mask.dilation_count = 1;
                p.mask.mix_dilations = p.mask.detach_mixing = true;
              }),
              testing::HasSubstr("detached"));
  EXPECT_THAT(refused([](AttentionProblem& p) {
                p.mask.dilations[0] = {16, 2};
                p.mask.dilation_count = 1;
                p.mask.block_rows = p.mask.block_columns = p.mask.max_blocks_per_row = 4;
              }),
              testing::HasSubstr("block lists with dilation"));
  AttentionProblem problem = sized(64, 2, 2).problem;
  problem.seq_q = 32;
  EXPECT_THROW(RingSchedule(problem, {}, {.pieces = {{{0, 64}}}}), Error);
}

// A sample has the buffers of the whole schedule, and every shape of pairs that the rank computes.
TEST(RingSchedule, ASampleHasEveryShapeOfItsRank) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const DrawnRing drawn = draw_ring(seed);
    const AttentionProblem& problem = drawn.attention.problem;
    const AttentionCaseLists lists = attention_case_lists(drawn.attention);
    const AttentionForward views = lists.views(problem);
    const Partition partition = make_partition(drawn.kind, drawn.ranks, problem, views);
    const RingSchedule whole(problem, views, partition);
    for (int rank = 0; rank < drawn.ranks; ++rank) {
      const RingSchedule sample(problem, views, partition, rank);
      SCOPED_TRACE(fmt::format("seed {}, rank {}: {}", seed, rank, drawn.name()));
      EXPECT_EQ(sample.most_keys(), whole.most_keys());
      EXPECT_EQ(sample.most_rows(), whole.most_rows());
      EXPECT_EQ(sample.packs(), whole.packs());
      const auto shapes = [&](const RingSchedule& schedule) {
        std::set<std::array<std::int64_t, 3>> found;
        for (std::int64_t slot = 0; slot < schedule.slots(); ++slot) {
          const Transfer* transfer = schedule.received(rank, slot);
          if (transfer == nullptr) continue;
          for (const ChunkPair& pair : transfer->pairs)
            found.insert({pair.query_piece, pair.queries.size(), pair.keys.size()});
        }
        return found;
      };
      EXPECT_EQ(shapes(sample), shapes(whole));
      EXPECT_LE(sample.slots(), whole.slots() + 1);
    }
  }
}

}  // namespace
}  // namespace headroom
