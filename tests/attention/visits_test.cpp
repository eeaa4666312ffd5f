// Block lists in tiles, as the Hopper kernels work on them: the kernels that write the visits, run on the
// host in the memory that is planned for them, held against the mask's own definition.
#include "cuda/on_host.h"
// Kernels come after what they need of the language.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "attention/cuda/sm90/plan.h"
#include "attention/cuda/sm90/visits-inl.h"
#include "attention_cases.h"

namespace headroom::cuda::sm90 {
namespace {

// The views with tensors that have a shape and no memory.
AttentionForward with_rows(const AttentionProblem& problem, AttentionForward views) {
  views.query = views.output =
      TensorView(nullptr, problem.dtype, {problem.batch, problem.seq_q, problem.heads_q, problem.head_dim});
  views.key = views.value =
      TensorView(nullptr, problem.dtype, {problem.batch, problem.seq_k, problem.heads_kv, problem.head_dim});
  views.lse = TensorView(nullptr, DType::f32, {problem.batch, problem.heads_q, problem.seq_q});
  return views;
}

// A pass's visits, written in a workspace with a guard behind it.
class Written {
 public:
  Written(const AttentionProblem& problem, const AttentionForward& views, Pass pass)
      : memory_(static_cast<std::size_t>(Workspace(problem, pass, nullptr).bytes + kGuard), kUntouched),
        visits(Workspace(problem, pass, memory_.data()).visits) {
    const AttentionCall call = attention_call(problem, with_rows(problem, views));
    launch_copy_lists(call, visits.lists, Stream{});
    launch_visits(call, visits, Stream{});
  }
  [[nodiscard]] bool guard_stands() const {
    return std::all_of(memory_.end() - kGuard, memory_.end(), [](std::byte b) { return b == kUntouched; });
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 4096;
  static constexpr std::byte kUntouched{0x5A};
  std::vector<std::byte> memory_;

 public:
  Visits visits;
};

using Pairs = std::set<std::pair<std::int64_t, std::int64_t>>;

// What threads that hold columns 0 and 1, 2 and 3, .. of every eight keep of a tile.
template <class Bits>
std::vector<bool> columns_kept(std::int32_t columns, const Bits& bits) {
  std::vector<bool> kept(static_cast<std::size_t>(columns));
  for (std::int32_t first = 0; first < 8; first += 2) {
    const std::uint32_t held = bits(first);
    for (std::int32_t i = 0; i < columns / 4; ++i) {
      kept[static_cast<std::size_t>(i / 2 * 8 + first + i % 2)] = (held >> i & 1) != 0;
    }
  }
  return kept;
}

void expect_visits_reach(const AttentionProblem& problem, const AttentionForward& views, Pass pass) {
  const Written written(problem, views, pass);
  const Visits& visits = written.visits;
  ASSERT_TRUE(written.guard_stands());
  const auto seq_q = static_cast<std::int32_t>(problem.seq_q);
  for (std::int64_t head = 0; head < problem.batch * problem.heads_q; ++head) {
    const MaskView truth = mask_view(problem, views, head / problem.heads_q, head % problem.heads_q, 0);
    Pairs pairs;
    std::int64_t all_visits = 0;
    for (std::int32_t m = 0; m < visits.query_tiles; ++m) {
      const std::int32_t count = visits.counts[visits.tile(head, m)];
      ASSERT_LE(count, visits.capacity);
      all_visits += count;
      const Range rows{m * visits.tile_rows, std::min((m + 1) * visits.tile_rows, seq_q)};
      for (std::int32_t n = 0; n < count; ++n) {
        const std::int32_t* entry = visits.entries + visits.offset(head, m * visits.capacity + n);
        const std::int32_t key_tile = *entry / 2;
        ASSERT_LT(key_tile, visits.key_tiles);
        ASSERT_TRUE(n == 0 || entry[-1] / 2 < key_tile);
        const Range keys{key_tile * visits.tile_keys, (key_tile + 1) * visits.tile_keys};
        std::vector<std::vector<bool>> by_key;  // as backward asks
        for (std::int32_t k = keys.begin; k < keys.end; ++k) {
          by_key.push_back(columns_kept(visits.tile_rows, [&](std::int32_t first) {
            return visits.lists.queries_of(head, k, rows, first);
          }));
        }
        for (std::int32_t q = rows.begin; q < rows.end; ++q) {
          const Range seen = plain_interval(truth, q);
          const std::vector<bool> kept = columns_kept(visits.tile_keys, [&](std::int32_t first) {
            return visits.lists.keys_of(head, q, keys, first);
          });
          for (std::int32_t k = keys.begin; k < std::min<std::int64_t>(keys.end, problem.seq_k); ++k) {
            const auto column = static_cast<std::size_t>(k - keys.begin);
            ASSERT_EQ(kept[column], by_key[column][static_cast<std::size_t>(q - rows.begin)]);
            ASSERT_TRUE(kept[column] || *entry % 2 == 0) << "said to be whole";
            if (kept[column] && seen.begin <= k && k < seen.end) pairs.emplace(q, k);
          }
        }
      }
    }
    for (std::int64_t q = 0; q < problem.seq_q; ++q) {
      for (std::int64_t k = 0; k < problem.seq_k; ++k) {
        ASSERT_EQ(pairs.contains({q, k}), truth.attends(q, k)) << "query " << q << ", key " << k;
      }
    }
    if (pass == Pass::forward) continue;
    // The way back meets every visit once, each key tile's from the last query tile on.
    for (std::int32_t key_tile = 0; key_tile < visits.key_tiles; ++key_tile) {
      std::int32_t tile_after = visits.query_tiles;
      for (std::int32_t visit = visits.last[head * visits.key_tiles + key_tile]; visit >= 0;
           visit = visits.before[visits.offset(head, visit)]) {
        ASSERT_EQ(visits.entries[visits.offset(head, visit)] / 2, key_tile);
        ASSERT_LT(visit / visits.capacity, tile_after);
        tile_after = visit / visits.capacity;
        ASSERT_LT(visit % visits.capacity, visits.counts[visits.tile(head, tile_after)]);
        --all_visits;
      }
    }
    ASSERT_EQ(all_visits, 0);
  }
}

TEST(Visits, ReachWhatTheMaskLeavesAndNothingElse) {
  int checked = 0;
  for (const AttentionCase& c : attention_cases()) {
    if (c.problem.mask.block_rows == 0) continue;
    SCOPED_TRACE(c.name);
    const AttentionCaseLists lists = attention_case_lists(c);
    AttentionProblem problem = c.problem;
    for (const std::int64_t head_dim : {64, 96, 128, 256}) {  // tiles of every shape
      problem.head_dim = head_dim;
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        expect_visits_reach(problem, lists.views(problem), pass);
        if (testing::Test::HasFatalFailure()) return;
        ++checked;
      }
    }
  }
  EXPECT_GE(checked, 9 * 8);
}

// More tiles than a warp has lanes, on either side.
TEST(Visits, LongerThanAWarp) {
  for (const auto& [seq_q, seq_k] : {std::pair{4500, 130}, std::pair{130, 4500}}) {
    AttentionCase c;
    c.problem = {.seq_q = seq_q, .seq_k = seq_k, .heads_q = 1, .heads_kv = 1, .head_dim = 256};
    c.problem.mask.block_rows = 50;
    c.problem.mask.block_columns = 40;
    c.problem.mask.max_blocks_per_row = seq_k / 80;
    const AttentionCaseLists lists = attention_case_lists(c);
    expect_visits_reach(c.problem, lists.views(c.problem), Pass::backward);
  }
}

// A tile is whole where every row lists every key of it, at the sequence's end as well; or masking would
// never be skipped.
TEST(Visits, TilesOfWholeBlocksAreWhole) {
  AttentionProblem problem{.seq_q = 300, .seq_k = 300, .heads_q = 1, .heads_kv = 1, .head_dim = 128};
  problem.mask.block_rows = problem.mask.block_columns = 128;
  problem.mask.max_blocks_per_row = 2;
  const std::vector<std::int32_t> blocks = {0, 2, 1, 2, 2, -1};
  AttentionForward views;
  views.blocks = TensorView(const_cast<std::int32_t*>(blocks.data()), DType::i32, {1, 1, 3, 2});
  const Visits forward = Written(problem, views, Pass::forward).visits;
  EXPECT_EQ(forward.capacity, 2);
  const Written backward(problem, views, Pass::backward);
  const Visits& visits = backward.visits;
  EXPECT_EQ(visits.query_tiles, 5);
  for (std::int32_t m = 0; m < visits.query_tiles; ++m) {
    for (std::int32_t n = 0; n < visits.counts[m]; ++n) {
      EXPECT_EQ(visits.entries[m * visits.capacity + n],
                2 * blocks[static_cast<std::size_t>(m / 2 * 2 + n)] + 1);
    }
  }
}

TEST(Visits, StayInTheirMemoryWhateverListsHold) {
  AttentionProblem problem{.seq_q = 200, .seq_k = 500, .heads_q = 2, .heads_kv = 2, .head_dim = 64};
  problem.mask.block_rows = 30;
  problem.mask.block_columns = 20;
  problem.mask.max_blocks_per_row = 5;
  const Random random(3);
  for (std::uint64_t trial = 0; trial < 20; ++trial) {
    std::vector<std::int32_t> blocks(2 * 7 * 5);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const auto below = static_cast<std::int32_t>(random.below(trial * 1000 + i, 30));
      blocks[i] = i % 7 == 0 ? 2'000'000'000 + below : i % 11 == 0 ? -2'000'000'000 : below - 1;
    }
    AttentionForward views;
    views.blocks = TensorView(blocks.data(), DType::i32, {1, 2, 7, 5});
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const Written written(problem, views, pass);
      const Visits& visits = written.visits;
      EXPECT_TRUE(written.guard_stands());
      for (std::int64_t tile = 0; tile < 2 * visits.query_tiles; ++tile) {
        ASSERT_LE(visits.counts[tile], visits.capacity);
        for (std::int32_t n = 0; n < visits.counts[tile]; ++n) {
          ASSERT_LT(visits.entries[tile * visits.capacity + n] / 2, visits.key_tiles);
        }
      }
    }
  }
}

TEST(Visits, TakeAboutAsMuchAsTheLists) {
  AttentionProblem problem{.seq_q = 1 << 20, .seq_k = 1 << 20, .heads_q = 8, .heads_kv = 1, .head_dim = 128};
  const std::int64_t without = Workspace(problem, Pass::forward, nullptr).bytes;
  problem.mask.block_rows = problem.mask.block_columns = 128;
  problem.mask.max_blocks_per_row = 64;
  const std::int64_t lists = 8 * (1 << 13) * 64 * 4;
  // The lists of every query head, what they come to in tiles, and how much of that there is.
  EXPECT_EQ(Workspace(problem, Pass::forward, nullptr).bytes - without, 2 * lists + lists / 64);
}

TEST(Visits, MostTouchedIsTheMost) {
  for (std::int64_t size = 1; size < 40; ++size) {
    for (std::int64_t step = 1; step < 40; ++step) {
      std::int64_t found = 0;
      for (std::int64_t n = 0; n < 2 * step; ++n) {
        found = std::max(found, ((n + 1) * size - 1) / step - n * size / step + 1);
      }
      EXPECT_LE(found, most_touched(size, step)) << size << " in steps of " << step;
      EXPECT_GE(found + 1, most_touched(size, step)) << size << " in steps of " << step;
    }
  }
}

}  // namespace
}  // namespace headroom::cuda::sm90
