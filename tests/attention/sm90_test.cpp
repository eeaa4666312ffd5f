// What the Hopper row plans without a GPU: which kernels, how much workspace, and which keys a query sees.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>
#include <vector>

#include "attention/cuda/sm90/plan.h"
#include "attention_cases.h"

namespace headroom::cuda {
namespace {

const DeviceDescription kHopper{.kind = DeviceKind::cuda, .name = "made up", .compute_major = 9};

TEST(Sm90, RowsFollowFromAFormulaOnlyWhereTheyAreEvenlyApart) {
  using sm90::Source;
  const auto source = [](std::int64_t seq, std::initializer_list<Dilation> patterns, bool mixed = false,
                         std::int64_t documents = 0) {
    AttentionProblem problem{.seq_q = seq, .seq_k = seq, .heads_q = 2, .heads_kv = 2, .head_dim = 64};
    std::copy(patterns.begin(), patterns.end(), problem.mask.dilations.begin());
    problem.mask.dilation_count = static_cast<int>(patterns.size());
    problem.mask.mix_dilations = mixed;
    problem.mask.max_documents = documents;
    return sm90::Plan::of(problem).source;
  };
  EXPECT_EQ(source(210, {}), Source::formula);
  EXPECT_EQ(source(210, {}, false, 3), Source::tables);
  EXPECT_EQ(source(210, {{30, 3}}), Source::formula);
  EXPECT_EQ(source(210, {{500, 3}}), Source::formula);  // one segment
  EXPECT_EQ(source(211, {{30, 3}}), Source::lists);     // the rate does not divide the length
  EXPECT_EQ(source(211, {{500, 3}}), Source::lists);
  EXPECT_EQ(source(210, {{31, 3}}), Source::lists);  // nor the segment
  EXPECT_EQ(source(210, {{30, 3}}, false, 3), Source::lists);
  EXPECT_EQ(source(210, {{30, 3}, {60, 2}}), Source::lists);  // of each head another
  EXPECT_EQ(source(210, {{30, 3}, {60, 2}}, true), Source::formula);
  EXPECT_EQ(source(210, {{30, 3}, {60, 4}}, true), Source::lists);
}

// Plain and general kernels have tiles of different sizes. What is reserved for tiles has to be in units of
// those that run: both read the plan.
TEST(Sm90, WorkspaceIsForTheTilesOfThePlannedKernels) {
  using sm90::Plan;
  const auto planned = [](int head_dim, float softcap, std::int64_t block_rows) {
    AttentionProblem problem{.seq_q = 1, .seq_k = 1, .head_dim = head_dim, .dtype = DType::bf16};
    problem.softcap = softcap;
    problem.mask.block_rows = problem.mask.block_columns = block_rows;
    problem.mask.max_blocks_per_row = block_rows > 0 ? 1 : 0;
    return problem;
  };
  int general = 0;
  for (const int head_dim : {8, 64, 72, 96, 128, 136, 192, 256}) {
    for (const float softcap : {0.0F, 3.0F}) {
      for (const std::int64_t block_rows : {0, 32}) {
        const AttentionProblem problem = planned(head_dim, softcap, block_rows);
        const sm90::Workspace forward(problem, Pass::forward, nullptr);
        const sm90::Workspace backward(problem, Pass::backward, nullptr);
        EXPECT_EQ(forward.plan, Plan::of(problem));
        EXPECT_EQ(backward.plan, Plan::of(problem));
        EXPECT_EQ(forward.plan.general, softcap > 0 || block_rows > 0);
        general += forward.plan.general ? 1 : 0;
        // One row is padded to a tile.
        EXPECT_EQ(backward.queries.padded_places, backward.plan.tiles.backward.queries) << head_dim;
        std::int64_t expected = 64;
        if (!backward.plan.general && head_dim <= 64) expected = 128;
        if (!backward.plan.general && head_dim > 128 && head_dim <= 192) expected = 96;
        EXPECT_EQ(backward.queries.padded_places, expected) << head_dim;
        EXPECT_EQ(backward.queries.sums_bytes,
                  backward.plan.tiles.queries_apart()
                      ? 0
                      : 4 * backward.queries.padded_places * backward.plan.tiles.head_dim);
        if (block_rows == 0) continue;
        EXPECT_EQ(forward.visits.tile_rows, forward.plan.tiles.forward.rows());
        EXPECT_EQ(forward.visits.tile_rows, 128) << "of two consumers";
        EXPECT_EQ(forward.visits.tile_keys, forward.plan.tiles.forward.keys);
        EXPECT_EQ(backward.visits.tile_rows, backward.plan.tiles.backward.queries);
        EXPECT_EQ(backward.visits.tile_keys, backward.plan.tiles.backward.keys);
      }
    }
  }
  EXPECT_EQ(general, 8 * 3);
}

TEST(Sm90, BlocksDivideTheHeadsOfAGroupWhereTilesAreFew) {
  AttentionProblem problem{.batch = 1,
                           .seq_q = 16'384,
                           .seq_k = 16'384,
                           .heads_q = 32,
                           .heads_kv = 1,
                           .head_dim = 128,
                           .dtype = DType::bf16};
  const auto parts = [&] { return sm90::Plan::of(problem).key_parts; };
  const auto bytes = [&] { return sm90::Workspace(problem, Pass::backward, nullptr).bytes; };
  EXPECT_EQ(parts(), 8);  // 128 tiles
  const std::int64_t divided = bytes();
  problem.heads_kv = 4;
  EXPECT_EQ(parts(), 1);
  // Two sums of eight parts, of 16,384 keys.
  EXPECT_EQ(divided - bytes(), std::int64_t{2} * 8 * 16'384 * 128 * 4);
  problem.heads_kv = 32;
  problem.seq_k = 100;
  EXPECT_EQ(parts(), 1);  // nothing to divide
  problem.heads_q = 24;
  problem.heads_kv = 2;
  EXPECT_EQ(parts(), 12);  // all there are
  problem.seq_k = 6400;
  EXPECT_EQ(parts(), 12);  // eleven for 100 tiles, but then one of them would have two heads
  problem.heads_q = 142;
  EXPECT_EQ(parts(), 12);  // eleven of six heads and one of five
  problem.heads_q = 24;
  problem.whole = {.sequences = 32, .heads = 2};
  EXPECT_EQ(parts(), 1);  // a part of a problem with tiles enough
  problem.whole.reset();
  problem.mask.dilations = {Dilation{100, 2}};
  problem.mask.dilation_count = 1;
  EXPECT_EQ(parts(), 1);  // launches are of one head
}

// Waves alternate where a wave's rows are more than the L2 holds; and parts of a problem have those of the
// whole, whose dK and dV they make.
TEST(Sm90, WavesAlternateInPartsAsInTheWhole) {
  DeviceDescription h200 = kHopper;
  h200.cores = 132;
  h200.l2_bytes = 60 << 20;
  const AttentionProblem long_group{.batch = 8,
                                    .seq_q = 32'768,
                                    .seq_k = 32'768,
                                    .heads_q = 32,
                                    .heads_kv = 8,
                                    .head_dim = 128,
                                    .dtype = DType::bf16,
                                    .deterministic = false,
                                    .mask = {.causal = true}};
  const auto waves = [&](const AttentionProblem& problem) {
    return sm90::plan_waves(problem, h200, sm90::Plan::of(problem));
  };
  for (const bool deterministic : {false, true}) {
    AttentionProblem problem = long_group;
    problem.deterministic = deterministic;
    const sm90::Waves whole = waves(problem);
    EXPECT_EQ(whole.heads, deterministic ? 4 : 2);
    const int tiles = deterministic ? 33 : 66;  // of a head, in a wave
    for (const int tile : {0, tiles - 1, 2 * tiles}) EXPECT_FALSE(whole.rises(tile)) << tile;
    for (const int tile : {tiles, 2 * tiles - 1, 3 * tiles}) EXPECT_TRUE(whole.rises(tile)) << tile;
    for (const std::int64_t groups : {1, 2, 8}) {
      AttentionProblem part = problem;
      part.batch = 1;
      part.heads_q /= groups;
      part.heads_kv /= groups;
      part.whole = {.sequences = 8, .heads = 8};
      for (int tile = 0; tile < 256; ++tile) {
        EXPECT_EQ(waves(part).rises(tile), whole.rises(tile)) << groups << " groups, tile " << tile;
      }
    }
  }
  // Heads of a section, and tiles of each in a wave.
  const auto section = [&](bool deterministic, std::int64_t batch, std::int64_t seq, std::int64_t heads_kv) {
    AttentionProblem problem = long_group;
    problem.deterministic = deterministic;
    problem.batch = batch;
    problem.seq_q = problem.seq_k = seq;
    problem.heads_q = 4 * heads_kv;
    problem.heads_kv = heads_kv;
    const sm90::Waves of = waves(problem);
    return std::pair(of.heads, of.heads == 0 ? 0 : of.tiles);
  };
  EXPECT_EQ(section(false, 8, 8'192, 2), std::pair(8, 16));
  EXPECT_EQ(section(false, 37, 8'192, 2), std::pair(8, 16));  // sections may differ by a head
  EXPECT_EQ(section(true, 8, 8'192, 2), std::pair(4, 33));
  EXPECT_EQ(section(true, 1, 16'384, 2), std::pair(2, 66));  // all there are
  EXPECT_EQ(section(true, 1, 16'384, 7), std::pair(7, 18));  // sections are equal
  EXPECT_EQ(section(true, 1, 6'400, 19), std::pair(0, 0));   // 18 blocks would be left over
  EXPECT_EQ(section(true, 1, 6'400, 4), std::pair(0, 0));    // less than two waves
  // From 2 GiB of sums on a section has heads of one sequence, or one head.
  EXPECT_EQ(section(true, 14, 32'768, 2), std::pair(4, 33));
  EXPECT_EQ(section(true, 16, 32'768, 2), std::pair(2, 66));
  EXPECT_EQ(section(true, 1, 100'000, 8), std::pair(4, 33));
  EXPECT_EQ(section(true, 1, 131'072, 8), std::pair(1, 132));
  const auto none = [&](const auto& change) {
    AttentionProblem problem = long_group;
    change(problem);
    return waves(problem).heads == 0;
  };
  EXPECT_TRUE(none([](AttentionProblem& p) { p.heads_kv = 32; }));  // the L2 holds the rows of one head
  EXPECT_TRUE(none([](AttentionProblem& p) { p.seq_q = p.seq_k = 5'632; }));
  EXPECT_TRUE(none([](AttentionProblem& p) { p.mask.causal = false; }));
  EXPECT_TRUE(none([](AttentionProblem& p) { p.mask.window_left = 4096; }));
  EXPECT_TRUE(none([](AttentionProblem& p) { p.mask.max_documents = 3; }));
  EXPECT_TRUE(none([](AttentionProblem& p) { p.seq_q = 16'384; }));
  EXPECT_FALSE(none([](AttentionProblem&) {}));
}

// Chunks before, among and behind their keys, of lengths that are no multiples of tiles, and so far apart
// that 32 bits do not hold the distance.
std::vector<AttentionProblem> chunk_problems() {
  constexpr std::int64_t kFar = std::int64_t{1} << 40;
  constexpr std::array<AttentionChunk, 9> kChunks = {{{0, 0},
                                                      {300, 0},
                                                      {0, 300},
                                                      {120, 90},
                                                      {90, 210},
                                                      {kFar, 0},
                                                      {0, kFar},
                                                      {kFar + 70, kFar},
                                                      {kFar, kFar + 70}}};
  struct Rule {
    bool causal;
    std::int64_t left, right;
  };
  constexpr std::int64_t kAll = Mask::kUnlimited;
  constexpr std::array<Rule, 7> kRules = {{{false, kAll, kAll},
                                           {true, kAll, kAll},
                                           {true, 50, 0},
                                           {false, 50, 30},
                                           {true, 0, 0},
                                           {false, kFar - 100, kAll},
                                           {false, kAll, kFar - 100}}};
  std::vector<AttentionProblem> problems;
  for (const auto& [seq_q, seq_k] : {std::pair{130, 300}, {300, 130}, {1, 260}, {257, 1}, {192, 192}}) {
    for (const Rule& rule : kRules) {
      AttentionProblem problem{.seq_q = seq_q, .seq_k = seq_k, .head_dim = 64, .dtype = DType::bf16};
      problem.mask.causal = rule.causal;
      problem.mask.window_left = rule.left;
      problem.mask.window_right = rule.right;
      problems.push_back(problem);
      for (const AttentionChunk& chunk : kChunks) {
        problem.chunk = chunk;
        problems.push_back(problem);
      }
    }
  }
  return problems;
}

TEST(Sm90Intervals, AreThoseOfTheMask) {
  for (const AttentionProblem& problem : chunk_problems()) {
    SCOPED_TRACE(testing::Message() << problem.query_start() << ", " << problem.key_start());
    const MaskView mask = mask_view(problem, {}, 0, 0);
    const auto [seen, seen_by] = sm90::IntervalsOfPlaces::of(problem, {});
    for (int q = 0; q < problem.seq_q; ++q) {
      const Range truth = plain_interval(mask, q);
      const Range found = seen.of(0, 0, q);
      ASSERT_EQ(found.empty(), truth.empty()) << q;
      ASSERT_TRUE(truth.empty() || found == truth) << q;
      ASSERT_GE(found.begin, 0);
      ASSERT_LE(found.end, problem.seq_k);
      for (int k = 0; k < problem.seq_k; ++k) {
        const Range queries = seen_by.of(0, 0, k);
        ASSERT_EQ(queries.begin <= q && q < queries.end, mask.attends(q, k)) << q << ", " << k;
      }
    }
  }
}

TEST(Sm90Intervals, OfEvenlyDilatedRowsAreThoseOfTheMask) {
  for (const Dilation dilation : {Dilation{30, 3}, {210, 3}, {500, 7}}) {
    for (const std::int64_t left : {std::int64_t{40}, Mask::kUnlimited}) {
      AttentionProblem problem{.seq_q = 210, .seq_k = 210, .head_dim = 64, .dtype = DType::bf16};
      problem.mask.causal = true;
      problem.mask.window_left = left;
      problem.mask.dilations[0] = dilation;
      problem.mask.dilation_count = 1;
      ASSERT_EQ(sm90::Plan::of(problem).source, sm90::Source::formula);
      const MaskView mask = mask_view(problem, {}, 0, 0);
      const auto [seen, seen_by] = sm90::IntervalsOfPlaces::of(problem, dilation);
      const auto rate = static_cast<int>(dilation.rate);
      for (int q = 0; q < 210 / rate; ++q) {
        for (int k = 0; k < 210 / rate; ++k) {
          const Range keys = seen.of(0, 0, q);
          const Range queries = seen_by.of(0, 0, k);
          ASSERT_EQ(keys.begin <= k && k < keys.end, mask.attends(q * rate, k * rate)) << q << ", " << k;
          ASSERT_EQ(queries.begin <= q && q < queries.end, mask.attends(q * rate, k * rate))
              << q << ", " << k;
        }
      }
    }
  }
}

// Backward's blocks keep key tiles and add to the dQ of query tiles in turns. Turns are counted from the tile
// that the first query begins in: were one of them missing, those after it would wait for ever. And where a
// query of the tile sees anything somebody adds, or dQ would be read from memory that nobody wrote.
TEST(Sm90Intervals, KeyTilesTakeTurnsWithoutAGap) {
  for (const AttentionProblem& problem : chunk_problems()) {
    SCOPED_TRACE(testing::Message() << problem.query_start() << ", " << problem.key_start());
    const auto [seen, seen_by] = sm90::IntervalsOfPlaces::of(problem, {});
    const auto queries = static_cast<int>(problem.seq_q);
    const auto keys = static_cast<int>(problem.seq_k);
    for (const auto& [tile_queries, tile_keys] : {std::pair{64, 128}, {128, 128}, {64, 64}}) {
      std::vector<std::vector<int>> visitors(static_cast<std::size_t>(ceil_div(queries, tile_queries)));
      for (int j = 0; j * tile_keys < keys; ++j) {
        const int last_key = std::min((j + 1) * tile_keys, keys) - 1;
        const int begin = seen_by.of(0, 0, j * tile_keys).begin / tile_queries;
        const int end = (seen_by.of(0, 0, last_key).end + tile_queries - 1) / tile_queries;
        for (int m = begin; m < end; ++m) visitors.at(static_cast<std::size_t>(m)).push_back(j);
      }
      for (int m = 0; m * tile_queries < queries; ++m) {
        const std::vector<int>& of_tile = visitors[static_cast<std::size_t>(m)];
        const int first_key = seen.of(0, 0, m * tile_queries).begin;
        const int end = seen.of(0, 0, std::min((m + 1) * tile_queries, queries) - 1).end;
        for (std::size_t turn = 0; turn < of_tile.size(); ++turn) {
          ASSERT_EQ(of_tile[turn] - first_key / tile_keys, static_cast<int>(turn)) << m;
        }
        ASSERT_TRUE(first_key >= end || !of_tile.empty()) << m;
      }
    }
  }
}

TEST(Sm90, TakesEveryChunkIn16Bits) {
  const AttentionImplementation& row = find_attention("sm90");
  int chunks = 0;
  for (const AttentionCase& c : attention_cases()) {
    if (c.group != "chunks" || c.problem.dtype == DType::f32) continue;
    ++chunks;
    AttentionProblem problem = c.problem;
    EXPECT_TRUE(row.supports(problem, kHopper)) << c.name << row.supports(problem, kHopper).reason();
    problem.gradient_dtype = DType::f32;
    problem.add_gradients = true;
    EXPECT_TRUE(row.supports(problem, kHopper)) << c.name;
    if (problem.sinks || problem.mask.detach_mixing) continue;
    problem.output_dtype = DType::f32;
    problem.resume = true;
    EXPECT_TRUE(row.supports(problem, kHopper)) << c.name;
  }
  EXPECT_GT(chunks, 60);
}

TEST(Sm90, WorkspaceOfChunks) {
  AttentionProblem problem{
      .seq_q = 4096, .seq_k = 4096, .heads_q = 32, .heads_kv = 8, .head_dim = 128, .dtype = DType::bf16};
  const auto bytes = [&](Pass pass) { return sm90::Workspace(problem, pass, nullptr).bytes; };
  const std::int64_t forward = bytes(Pass::forward);
  const std::int64_t backward = bytes(Pass::backward);
  // Positions, an open softmax and f32 gradients that are added to take nothing.
  problem.chunk = AttentionChunk{.query_start = 8192, .key_start = 4096};
  problem.gradient_dtype = DType::f32;
  problem.add_gradients = true;
  EXPECT_EQ(bytes(Pass::backward), backward);
  problem.output_dtype = DType::f32;
  problem.resume = true;
  EXPECT_EQ(bytes(Pass::forward), forward);
  // Products read dO in 16 bits.
  EXPECT_EQ(bytes(Pass::backward) - backward, std::int64_t{4096} * 32 * 128 * 2);
  // Blocks that divide a group have sums of their own, also beside gradients in f32.
  problem.output_dtype.reset();
  problem.resume = false;
  problem.heads_kv = 1;
  ASSERT_EQ(sm90::Plan::of(problem).key_parts, 32);
  EXPECT_EQ(bytes(Pass::backward) - backward, std::int64_t{2} * 32 * 4096 * 128 * 4);
  // Keys at other positions than the queries are other rows of a dilated pattern: two lists.
  problem.heads_kv = 8;
  problem.mask.dilations[0] = {1024, 4};
  problem.mask.dilation_count = 1;
  const sm90::Workspace dilated(problem, Pass::backward, nullptr);
  EXPECT_EQ(dilated.plan.source, sm90::Source::lists);
  problem.chunk = AttentionChunk{};
  EXPECT_EQ(sm90::Plan::of(problem).source, sm90::Source::formula);
  problem.chunk = AttentionChunk{.query_start = 2, .key_start = 2};
  EXPECT_EQ(sm90::Plan::of(problem).source, sm90::Source::lists);
}

TEST(Sm90, OpenQueriesAreOutsideOfTheWorkspace) {
  AttentionProblem problem{.seq_q = 1000,
                           .seq_k = 4096,
                           .heads_q = 32,
                           .heads_kv = 8,
                           .head_dim = 128,
                           .dtype = DType::bf16,
                           .gradient_dtype = DType::f32,
                           .add_gradients = true};
  const auto workspace = [&] { return sm90::Workspace(problem, Pass::backward, nullptr).bytes; };
  const std::int64_t closed = workspace();
  problem.open_queries = OpenQueries{.first = true};
  // 1,000 rows in tiles of 64: two statistics and the sums of each.
  EXPECT_EQ(sm90::open_bytes(problem), std::int64_t{1024} * 32 * (2 + 128) * 4);
  EXPECT_EQ(closed - workspace(), sm90::open_bytes(problem));
  // One answer for every chunk of keys.
  const std::int64_t bytes = sm90::open_bytes(problem);
  problem.seq_k = 7;
  problem.mask.causal = true;
  problem.mask.window_left = 100;
  problem.mask.max_documents = 3;
  EXPECT_EQ(sm90::open_bytes(problem), bytes);

  // Where dQ is apart, rows are listed, or products read a dO of their own.
  const auto none_with = [&](const auto& change) {
    AttentionProblem changed = problem;
    change(changed);
    EXPECT_EQ(sm90::open_bytes(changed), 0);
  };
  none_with([](AttentionProblem& p) { p.head_dim = 192; });
  none_with([](AttentionProblem& p) { p.output_dtype = DType::f32; });
  none_with([](AttentionProblem& p) {
    p.mask.block_rows = p.mask.block_columns = 128;
    p.mask.max_blocks_per_row = 2;
  });
  none_with([](AttentionProblem& p) {
    p.mask.dilations[0] = {1024, 4};
    p.mask.dilation_count = 1;
  });
}

}  // namespace
}  // namespace headroom::cuda
