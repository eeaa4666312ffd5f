// What the CUDA kernels work on, held against the mask's own definition: pure functions, no GPU.
#include "attention/cuda/tiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "attention/cuda/intervals/rows.h"
#include "attention/dilated_rows.h"
#include "attention/implementations.h"
#include "attention_cases.h"
#include "headroom/cpu.h"
#include "headroom/memory.h"

namespace headroom::cuda {
namespace {

struct List {
  std::vector<std::int32_t> rows, first, last, key_rows;
};

// As the kernels of lists-inl.h write it.
List list_of(const MaskView& mask) {
  List list;
  if (mask.dilation.segment == 0) {
    for (std::int64_t q = 0; q < mask.seq_q; ++q) {
      const Range seen = plain_interval(mask, q);
      list.rows.push_back(static_cast<std::int32_t>(q));
      list.first.push_back(seen.begin);
      list.last.push_back(seen.end);
    }
    return list;
  }
  for (std::int64_t n = 0; n < DilatedDocument::count(mask); ++n) {
    const DilatedDocument document = DilatedDocument::of(mask, n);
    const KeyRange queries = document.members(mask.query_start, mask.seq_q);
    const KeyRange keys = document.members(mask.key_start, mask.seq_k);
    const auto index = [&, before = std::ssize(list.key_rows)](std::int64_t member) {
      return static_cast<std::int32_t>(before + std::clamp(member, keys.begin, keys.end) - keys.begin);
    };
    for (std::int64_t member = queries.begin; member < queries.end; ++member) {
      const KeyRange seen = document.seen(mask, member);
      list.rows.push_back(static_cast<std::int32_t>(document.position(member) - mask.query_start));
      list.first.push_back(index(seen.begin));
      list.last.push_back(index(seen.end));
    }
    for (std::int64_t member = keys.begin; member < keys.end; ++member) {
      list.key_rows.push_back(static_cast<std::int32_t>(document.position(member) - mask.key_start));
    }
  }
  return list;
}

// Every pair that the tiles of a list reach and its intervals keep is a pair that attends, and none is
// missing; forward's walk and backward's agree.
void expect_tiles_cover(const AttentionProblem& problem, const AttentionForward& views, std::int64_t b,
                        std::int64_t h, int pattern, std::int32_t tile_rows) {
  const MaskView truth = mask_view(problem, views, b, h, pattern);
  const MaskView mask = mask_rule(problem, views).of(b, h, pattern);
  const List list = list_of(mask);
  const bool dilated = mask.dilation.segment != 0;
  const auto count_q = static_cast<std::int32_t>(list.rows.size());
  const auto count_k = static_cast<std::int32_t>(dilated ? std::ssize(list.key_rows) : problem.seq_k);
  if (dilated) {
    ASSERT_LE(count_q, most_dilated_rows(problem, problem.seq_q, problem.query_start()));
    ASSERT_LE(count_k, most_dilated_rows(problem, problem.seq_k, problem.key_start()));
  }
  for (std::size_t i = 1; i < list.rows.size(); ++i) {
    ASSERT_LT(list.rows[i - 1], list.rows[i]);
    ASSERT_LE(list.first[i - 1], list.first[i]);
    ASSERT_LE(list.last[i - 1], list.last[i]);
  }
  const auto key_row = [&](std::int32_t k) {
    return dilated ? list.key_rows[static_cast<std::size_t>(k)] : k;
  };

  const QueryTiling tiling = QueryTiling::of(problem.mask.block_rows, problem.seq_q, tile_rows);
  const auto block_list = [&](std::int64_t t) -> BlockList {
    if (problem.mask.block_rows == 0) return {};
    return {truth.blocks + tiling.block_of(t) * truth.block_stride, problem.mask.max_blocks_per_row,
            std::min(problem.mask.block_columns, std::max<std::int64_t>(problem.seq_k, 1))};
  };
  std::set<std::pair<std::int64_t, std::int64_t>> reached;  // (query tile, key tile)
  std::vector<char> kept(static_cast<std::size_t>(problem.seq_q * problem.seq_k), 0);
  const auto place = [&](std::int64_t q, std::int64_t k) {
    return static_cast<std::size_t>(q * problem.seq_k + k);
  };
  std::int32_t rows_seen = 0;
  for (std::int64_t t = 0; t < tiling.count(dilated ? count_q : problem.seq_q); ++t) {
    const Range rows = tiling.tile(t, count_q);
    ASSERT_LE(rows.end - rows.begin, tile_rows);
    if (rows.empty()) continue;
    ASSERT_EQ(rows.begin, rows_seen);
    rows_seen = rows.end;
    ASSERT_EQ(tiling.tile_of(rows.begin), t);
    ASSERT_EQ(tiling.tile_of(rows.end - 1), t);
    const BlockList blocks = block_list(t);
    const TileIntervals intervals = TileIntervals::of(list.first.data(), list.last.data(), rows);
    KeyTiles key_tiles(intervals.some, kTileKeys, blocks);
    std::int32_t before = -1;
    for (std::int32_t tile = key_tiles.next(); tile >= 0; tile = key_tiles.next()) {
      ASSERT_GT(tile, before);
      ASSERT_EQ(previous_key_tile(intervals.some, blocks, tile, kTileKeys), before);
      ASSERT_LT(tile * kTileKeys, count_k);
      before = tile;
      reached.emplace(t, tile);
      const Range keys{tile * kTileKeys, (tile + 1) * kTileKeys};
      ASSERT_TRUE(blocks.touches(keys));
      std::int32_t inside_tile = 0;
      for (std::int32_t q = rows.begin; q < rows.end; ++q) {
        for (std::int32_t k = keys.begin; k < std::min(keys.end, count_k); ++k) {
          const auto i = static_cast<std::size_t>(q);
          const bool inside = list.first[i] <= k && k < list.last[i];
          if (!inside) continue;
          if (blocks.touches({k, k + 1})) ++kept[place(list.rows[i], key_row(k))];
          ++inside_tile;
        }
      }
      const std::int32_t all = (rows.end - rows.begin) * (std::min(keys.end, count_k) - keys.begin);
      ASSERT_TRUE(inside_tile == all || !intervals.covers(keys));
    }
  }
  ASSERT_EQ(rows_seen, count_q);
  for (std::int64_t q = 0; q < problem.seq_q; ++q) {
    for (std::int64_t k = 0; k < problem.seq_k; ++k) {
      if (kept[place(q, k)] != (truth.attends(q, k) ? 1 : 0)) FAIL() << "query " << q << ", key " << k;
    }
  }
  // Backward: the tiles of a key tile's visitors, less those whose lists pass it by, are those that forward
  // took. Their turns depend on it.
  std::set<std::pair<std::int64_t, std::int64_t>> visited;
  for (std::int32_t tile = 0; tile * kTileKeys < count_k; ++tile) {
    const Range keys{tile * kTileKeys, (tile + 1) * kTileKeys};
    const Range rows = rows_that_see(list.first.data(), list.last.data(), count_q,
                                     {keys.begin, std::min(keys.end, count_k)});
    const Range tiles = tiles_of_rows(tiling, rows, count_q);
    for (std::int32_t t = tiles.begin; t < tiles.end; ++t) {
      if (block_list(t).touches(keys)) visited.emplace(t, tile);
    }
  }
  EXPECT_EQ(visited, reached);
}

TEST(CudaTiles, ReachWhatTheMaskLeavesAndNothingElse) {
  int checked = 0;
  for (const AttentionCase& c : attention_cases()) {
    if (c.problem.dtype != DType::f32 && c.group == "sizes") continue;  // the same masks
    if (c.problem.seq_q * c.problem.seq_k > 200'000) continue;
    const AttentionCaseLists lists = attention_case_lists(c);
    for (const std::int32_t tile_rows : {64, 128}) {
      for (std::int64_t h = 0; h < c.problem.heads_q; ++h) {
        for (int pattern = 0; pattern < c.problem.mask.patterns_per_head(); ++pattern) {
          SCOPED_TRACE(c.group + ": " + c.name);
          expect_tiles_cover(c.problem, lists.views(c.problem), c.problem.batch - 1, h, pattern, tile_rows);
          if (testing::Test::HasFatalFailure()) return;
          ++checked;
        }
      }
    }
  }
  EXPECT_GT(checked, 500);
}

TEST(CudaTiles, NoListLeadsOutOfRange) {
  // Lists that nobody should make: kernels read them all the same.
  const std::int32_t starts[] = {-5, 90, 40, 1'000'000};
  const std::int32_t blocks[] = {7, 2'000'000'000, 3, -1};
  for (const std::int64_t segment : {std::int64_t{0}, std::int64_t{16}}) {
    MaskView mask{.seq_q = 100, .seq_k = 100, .causal = true, .dilation = {}};
    mask.document_starts = starts;
    mask.documents = 3;
    mask.dilation = {segment, 3};
    std::int64_t members = 0;
    for (std::int64_t n = 0; segment > 0 && n < DilatedDocument::count(mask); ++n) {
      const DilatedDocument document = DilatedDocument::of(mask, n);
      const KeyRange all = document.members(0, 100);
      for (std::int64_t i = all.begin; i < all.end; ++i, ++members) {
        EXPECT_TRUE(document.position(i) >= 0 && document.position(i) < 100);
        EXPECT_TRUE(document.seen(mask, i).begin >= 0 && document.seen(mask, i).end <= all.end);
      }
    }
    for (std::int64_t q = 0; segment == 0 && q < 100; ++q) {
      const Range seen = plain_interval(mask, q);
      EXPECT_TRUE(0 <= seen.begin && seen.begin <= seen.end && seen.end <= 100);
    }
  }
  KeyTiles tiles({0, 100}, kTileKeys, {blocks, 4, 64});
  for (std::int32_t tile = tiles.next(); tile >= 0; tile = tiles.next()) EXPECT_LT(tile, 2);
}

TEST(CudaViews, FourNeighboursMoveAsOneOnlyWhereEveryRowStartsSo) {
  alignas(16) static float data[64];
  const auto aligned = [&](std::int64_t offset, std::array<std::int64_t, 4> strides, DType dtype) {
    auto* start = reinterpret_cast<std::byte*>(data) + offset * size_bytes(dtype);
    return heads_view(TensorView(start, dtype, {2, 3, 4, 8}, strides)).aligned;
  };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    EXPECT_TRUE(aligned(0, {1000, 96, 24, 1}, dtype));
    EXPECT_TRUE(aligned(4, {1000, 96, 24, 1}, dtype));
    EXPECT_FALSE(aligned(2, {1000, 96, 24, 1}, dtype));  // where the tensor starts
    EXPECT_FALSE(aligned(0, {1002, 96, 24, 1}, dtype));  // sequences
    EXPECT_FALSE(aligned(0, {1000, 98, 24, 1}, dtype));  // rows
    EXPECT_FALSE(aligned(0, {1000, 96, 23, 1}, dtype));  // heads: rows of four are at multiples of 4 again
  }
}

// Rehearses forward and backward on a made-up Hopper and returns the rows that were picked. `width`: elements
// from one head to the next.
std::vector<std::string_view> picked_rows(std::int64_t width, std::string_view pinned = {}) {
  const DeviceDescription gpu{.kind = DeviceKind::cuda, .name = "made up", .compute_major = 9};
  AttentionProblem problem{.seq_q = 100, .seq_k = 100, .heads_q = 2, .heads_kv = 2, .head_dim = 64};
  problem.dtype = DType::bf16;
  Context context(gpu);
  context.phase(Phase::step, [&] {
    const Tensor dense = context.allocate({.name = "x", .dtype = DType::bf16, .shape = {1, 100, 2, 64}});
    const Tensor wide = context.allocate({.name = "q", .dtype = DType::bf16, .shape = {1, 100, 2, width}});
    const Tensor lse = context.allocate({.name = "lse", .shape = {1, 2, 100}});
    const AttentionForward forward{.query = dense,
                                   .key = dense,
                                   .value = dense,
                                   .sinks = {},
                                   .document_starts = {},
                                   .blocks = {},
                                   .output = wide.view().slice(3, 0, 64),
                                   .lse = lse,
                                   .saved = {}};
    attention_forward(context, problem, forward, pinned);
    AttentionBackward backward{.forward = forward,
                               .output_gradient = dense,
                               .lse_gradient = {},
                               .query_gradient = dense,
                               .key_gradient = dense,
                               .value_gradient = dense,
                               .sinks_gradient = {}};
    attention_backward(context, problem, backward, pinned);
    backward.forward.output = dense;
    backward.key_gradient = wide.view().slice(3, 0, 64);
    attention_backward(context, problem, backward, pinned);
  });
  std::vector<std::string_view> rows;
  for (const WorkRecord& record : context.work(Phase::step)) rows.push_back(record.work.row);
  return rows;
}

// Hopper's copies and stores are of 16 bytes. Whether rows start so is asked when the row is picked, of
// inputs and of results, in rehearsal already.
TEST(CudaRows, StridesDecideWhichRowIsPicked) {
  using testing::Each;
  EXPECT_THAT(picked_rows(64), Each("sm90"));
  EXPECT_THAT(picked_rows(72), Each("sm90"));
  EXPECT_THAT(picked_rows(68), Each("portable"));
  EXPECT_THAT(picked_rows(65), Each("portable"));
  EXPECT_EQ(picked_rows(65).size(), 3);
  try {
    static_cast<void>(picked_rows(68, "sm90"));
    ADD_FAILURE() << "sm90 took rows that start at multiples of 8 bytes";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "no implementation of attention serves this problem: sm90: copies rows that start at "
                 "multiples of 16 bytes, these start at multiples of 8");
  }
}

// A row that writes down what the sequence launches.
struct Recorder {
  static constexpr bool kAddsQueryGradient = false;
  static inline std::vector<std::string> launched;

  static void add(std::string_view name) { launched.emplace_back(name); }
  static constexpr SharedLaunches kShared{
      .write_lists = nullptr,
      .write_seen_by = nullptr,
      .start_rows = [](const AttentionCall&, const Stream&) { add("start"); },
      .row_statistics = [](const AttentionCall&, const Stream&) { add("row statistics"); },
      .sinks_gradient = [](const AttentionCall&, const Stream&) { add("sinks"); },
      .zero_counters = nullptr,
      .zero = nullptr,
      .narrow =
          [](const AttentionCall&, const TypedHeadsView&, const TypedHeadsView& from, std::int64_t,
             std::int64_t, std::int64_t parts, bool adds, const Stream&) {
            add(from.dtype != DType::f32 ? "wrong"
                : parts == 1             ? "narrow"
                                         : fmt::format("{} {}", adds ? "add" : "narrow", parts));
          }};
  Workspace workspace;
  const SharedLaunches& shared = kShared;
  Stream stream{};

  void write_lists(const AttentionCall& call) const { add(fmt::format("lists {}", call.pattern)); }
  void forward(const AttentionCall& call) const {
    add(fmt::format("forward {}{}", call.pattern, call.lse == workspace.pattern_lse ? " alone" : ""));
  }
  void pattern_statistics(const AttentionCall&) const { add("statistics"); }
  void backward(const AttentionCall& call) const {
    add(fmt::format("backward {}..{}{}", call.group_begin, call.group_end,
                    call.add_key_gradients && call.key_gradient.data == nullptr ? " to what is there" : ""));
  }
  void zero(const AttentionCall& call, const TypedHeadsView&, std::int64_t rows, std::int64_t) const {
    add(call.batch == 1 ? fmt::format("zero {}", rows) : fmt::format("zero {} x {}", call.batch, rows));
  }
};

std::vector<std::string> launched(const AttentionProblem& problem, Pass pass, std::int64_t key_parts = 1) {
  Recorder::launched.clear();
  std::vector<std::byte> memory(1 << 20);
  Pieces pieces(memory.data());
  Recorder row;
  row.workspace.take(problem, pass, {.row_statistics = problem.sinks, .key_parts = key_parts}, pieces);
  EXPECT_LE(pieces.bytes(), std::ssize(memory));
  std::vector<float> sinks(static_cast<std::size_t>(problem.heads_q));
  const TensorView q(nullptr, problem.dtype, {1, problem.seq_q, problem.heads_q, problem.head_dim});
  const TensorView k(nullptr, problem.dtype, {1, problem.seq_k, problem.heads_kv, problem.head_dim});
  const TensorView query_gradient(nullptr, problem.dtype_of_gradients(), q.shape());
  const TensorView key_gradient(nullptr, problem.dtype_of_gradients(), k.shape());
  const AttentionForward forward{.query = q,
                                 .key = k,
                                 .value = k,
                                 .sinks = TensorView(sinks.data(), DType::f32, {problem.heads_q}),
                                 .document_starts = {},
                                 .blocks = {},
                                 .output = q,
                                 .lse = TensorView(nullptr, DType::f32, {1, problem.heads_q, problem.seq_q}),
                                 .saved = {}};
  if (pass == Pass::forward) {
    row.workspace.pattern_lse = sinks.data();  // of no call
    run_forward(problem, forward, row);
  } else {
    run_backward(problem,
                 {.forward = forward,
                  .output_gradient = q,
                  .lse_gradient = {},
                  .query_gradient = query_gradient,
                  .key_gradient = key_gradient,
                  .value_gradient = key_gradient,
                  .sinks_gradient = forward.sinks},
                 row);
  }
  return Recorder::launched;
}

TEST(CudaSequence, IsWhatEveryRowRuns) {
  using Names = std::vector<std::string>;
  AttentionProblem problem{.seq_q = 10, .seq_k = 10, .heads_q = 2, .heads_kv = 1, .head_dim = 8};
  problem.dtype = DType::bf16;
  EXPECT_EQ(launched(problem, Pass::forward), (Names{"lists 0", "forward 0"}));
  // A group's heads are summed by one launch; dQ is rounded from its f32 sums.
  EXPECT_EQ(launched(problem, Pass::backward), (Names{"lists 0", "statistics", "backward 0..2", "narrow"}));
  // Blocks that divide a group have sums of their own, which are added up.
  EXPECT_EQ(launched(problem, Pass::backward, 2),
            (Names{"lists 0", "statistics", "backward 0..2", "narrow", "narrow 2", "narrow 2"}));
  problem.sinks = true;
  EXPECT_EQ(launched(problem, Pass::backward),
            (Names{"row statistics", "sinks", "lists 0", "statistics", "backward 0..2", "narrow"}));
  problem.sinks = false;

  // Rows that take no part start with nothing seen; heads have different rows, so each is a launch that adds.
  problem.mask.dilations = {Dilation{5, 1}, Dilation{10, 2}};
  problem.mask.dilation_count = 1;
  EXPECT_EQ(launched(problem, Pass::forward), (Names{"start", "lists 0", "forward 0"}));
  EXPECT_EQ(launched(problem, Pass::backward),
            (Names{"zero 10", "zero 10", "zero 10", "lists 0", "statistics", "backward 0..1", "backward 1..2",
                   "narrow", "narrow", "narrow"}));
  problem.mask.dilation_count = 2;
  problem.mask.mix_dilations = true;
  EXPECT_EQ(launched(problem, Pass::forward),
            (Names{"start", "lists 0", "forward 0", "lists 1", "forward 1", "narrow"}));
  problem.mask.detach_mixing = true;
  EXPECT_EQ(launched(problem, Pass::backward),
            (Names{"zero 10", "zero 10", "zero 10", "lists 0", "start", "forward 0 alone", "statistics",
                   "backward 0..1", "backward 1..2", "lists 1", "start", "forward 1 alone", "statistics",
                   "backward 0..1", "backward 1..2", "narrow", "narrow", "narrow"}));

  problem.mask = {};
  problem.seq_k = 0;
  EXPECT_EQ(launched(problem, Pass::forward), (Names{"start"}));
  EXPECT_EQ(launched(problem, Pass::backward), (Names{"zero 10", "zero 0", "zero 0", "narrow"}));
  EXPECT_EQ(launched(problem, Pass::backward, 2),
            (Names{"zero 10", "zero 2 x 0", "zero 2 x 0", "narrow", "narrow 2", "narrow 2"}));
}

// Chunks add to f32 gradients: where they are, unless blocks that divide a group have sums of their own,
// which start from nothing.
TEST(CudaSequence, AddsToGradients) {
  using Names = std::vector<std::string>;
  AttentionProblem problem{.seq_q = 10, .seq_k = 10, .heads_q = 2, .heads_kv = 1, .head_dim = 8};
  problem.dtype = DType::bf16;
  problem.gradient_dtype = DType::f32;
  EXPECT_EQ(launched(problem, Pass::backward), (Names{"lists 0", "statistics", "backward 0..2"}));
  EXPECT_EQ(launched(problem, Pass::backward, 2),
            (Names{"lists 0", "statistics", "backward 0..2", "narrow 2", "narrow 2"}));
  problem.add_gradients = true;
  EXPECT_EQ(launched(problem, Pass::backward),
            (Names{"lists 0", "statistics", "backward 0..2 to what is there"}));
  EXPECT_EQ(launched(problem, Pass::backward, 2),
            (Names{"lists 0", "statistics", "backward 0..2", "add 2", "add 2"}));
  problem.seq_q = 0;
  EXPECT_EQ(launched(problem, Pass::backward), Names{});
  EXPECT_EQ(launched(problem, Pass::backward, 2), (Names{"zero 2 x 10", "zero 2 x 10", "add 2", "add 2"}));
}

TEST(CudaRows, AreInEveryBuildAndSayWhyTheyRefuse) {
  const AttentionImplementation& portable = find_attention("portable");
  AttentionProblem problem{.seq_q = 4096, .seq_k = 4096, .heads_q = 8, .heads_kv = 2, .head_dim = 64};
  EXPECT_EQ(portable.supports(problem, describe_cpu()).reason(), "runs on CUDA GPUs only");
  DeviceDescription gpu{.kind = DeviceKind::cuda, .name = "made up", .compute_major = 5};
  EXPECT_EQ(portable.supports(problem, gpu).reason(), "needs compute capability 6.0, this is 5.0");
  for (const int major : {6, 7, 8, 9, 10, 12}) {
    gpu.compute_major = major;
    EXPECT_TRUE(portable.supports(problem, gpu)) << major;
    EXPECT_GE(block_shared_bytes(gpu), 48 << 10);
  }
  // f32 runs on tensor cores where there are any, 16 bits do not come here.
  const AttentionImplementation& tf32x3 = find_attention("tf32x3");
  EXPECT_TRUE(tf32x3.supports(problem, gpu));
  gpu.compute_major = 7;
  EXPECT_EQ(tf32x3.supports(problem, gpu).reason(), "needs compute capability 8.0, this is 7.0");
  gpu.compute_major = 8;
  gpu.compute_minor = 6;
  problem.head_dim = 256;
  EXPECT_THAT(tf32x3.supports(problem, gpu).reason(), testing::HasSubstr("shared memory"));
  problem.dtype = DType::bf16;
  EXPECT_EQ(tf32x3.supports(problem, gpu).reason(), "takes f32, not bf16");
  problem.mask.dilations[0] = {64, 2};
  problem.mask.dilation_count = 1;
  problem.mask.block_rows = problem.mask.block_columns = problem.mask.max_blocks_per_row = 64;
  EXPECT_EQ(portable.supports(problem, gpu).reason(), "does not combine block lists with dilation");
}

TEST(CudaRows, HopperMultipliesF32InBf16Parts) {
  const std::span<const AttentionImplementation> table = attention_implementations();
  DeviceDescription gpu{.kind = DeviceKind::cuda, .name = "made up", .compute_major = 9};
  AttentionProblem problem{.seq_q = 4096, .seq_k = 4096};
  for (const auto& [head_dim, name] :
       {std::pair{32, "tf32x3"}, {40, "bf16x3"}, {128, "bf16x3"}, {136, "tf32x3"}}) {
    problem.head_dim = head_dim;
    EXPECT_EQ(choose(table, problem, gpu).implementation->name, name) << head_dim;
  }
  const AttentionImplementation& row = find_attention("bf16x3");
  EXPECT_EQ(row.supports(problem, gpu).reason(), "takes head_dim 40 to 128, not 136");
  problem.dtype = DType::bf16;
  EXPECT_EQ(row.supports(problem, gpu).reason(), "takes f32, not bf16");
  gpu.compute_major = 10;
  EXPECT_EQ(row.supports(problem, gpu).reason(), "needs compute capability 9.0, this is 10.0");
}

TEST(CudaRows, Tf32RunsOnlyWhereItIsNamed) {
  const std::span<const AttentionImplementation> table = attention_implementations();
  DeviceDescription gpu{.kind = DeviceKind::cuda, .name = "made up"};
  for (const int major : {6, 7, 8, 9, 10, 12}) {
    gpu.compute_major = major;
    for (const AttentionCase& c : attention_cases()) {
      const auto chosen = choose(table, c.problem, gpu).implementation;
      EXPECT_TRUE(chosen == nullptr || chosen->name != "tf32") << c.name;
    }
  }
  const AttentionProblem problem{.seq_q = 4096, .seq_k = 4096, .head_dim = 64};
  EXPECT_EQ(choose(table, problem, gpu).implementation->name, "tf32x3");
  EXPECT_EQ(choose(table, problem, gpu, "tf32").implementation->name, "tf32");
}

TEST(CudaRows, WorkspaceIsLinearAndKnown) {
  const AttentionImplementation& portable = find_attention("portable");
  const DeviceDescription gpu{.kind = DeviceKind::cuda, .name = "made up", .compute_major = 9};
  AttentionProblem problem{
      .batch = 8, .seq_q = 16384, .seq_k = 16384, .heads_q = 1, .heads_kv = 1, .head_dim = 64};
  const std::int64_t rows = 8 * 16384;
  EXPECT_EQ(portable.saved_bytes(problem), 0);
  EXPECT_EQ(portable.workspace_bytes(problem, gpu, Pass::forward), 2 * 4 * rows);  // an interval per row
  // Intervals, LSE in base 2, dO . O, who visits a tile of 64 keys, turns of tiles of queries, a counter.
  constexpr std::int64_t kCounter = 64;
  EXPECT_EQ(portable.workspace_bytes(problem, gpu, Pass::backward),
            4 * 4 * rows + 8 * rows / 64 + 4 * rows / 64 + kCounter);
  problem.deterministic = false;
  EXPECT_EQ(portable.workspace_bytes(problem, gpu, Pass::backward), 4 * 4 * rows + 8 * rows / 64 + kCounter);
  problem.deterministic = true;
  // Heads share the intervals; a 16-bit problem needs no sums in f32.
  problem.heads_q = 4;
  problem.dtype = DType::bf16;
  EXPECT_EQ(portable.workspace_bytes(problem, gpu, Pass::forward), 2 * 4 * rows);
  // On Hopper dQ of heads up to 128 is summed in f32; above, two numbers per row are all.
  const AttentionImplementation& sm90 = find_attention("sm90");
  EXPECT_GT(sm90.workspace_bytes(problem, gpu, Pass::backward), 4 * rows * 64 * 4);
  problem.head_dim = 256;
  EXPECT_EQ(sm90.workspace_bytes(problem, gpu, Pass::backward), 2 * 4 * 4 * rows + kCounter);
  problem.head_dim = 64;
  // In free order a tile of queries has no turn, unless so few keys add to it that turns are faster.
  const auto saved_by_free_order = [&](AttentionProblem of) {
    const std::int64_t in_turns = sm90.workspace_bytes(of, gpu, Pass::backward);
    of.deterministic = false;
    return in_turns - sm90.workspace_bytes(of, gpu, Pass::backward);
  };
  const std::int64_t turn_bytes = 4 * 4 * rows / 128;
  EXPECT_EQ(saved_by_free_order(problem), turn_bytes);
  AttentionProblem windowed = problem;
  windowed.mask.causal = true;
  windowed.mask.window_left = 4095;
  EXPECT_EQ(saved_by_free_order(windowed), 0);
  windowed.mask.window_left = 12'000;
  EXPECT_EQ(saved_by_free_order(windowed), turn_bytes);
  AttentionProblem packed = problem;
  packed.mask.max_documents = 16;
  EXPECT_EQ(saved_by_free_order(packed), 0);
  AttentionProblem narrow = problem;
  narrow.seq_q = narrow.seq_k = 4096;
  EXPECT_EQ(saved_by_free_order(narrow), 0);
  // Mixed patterns of 16-bit tensors do.
  problem.mask.dilations = {Dilation{1024, 1}, Dilation{4096, 4}};
  problem.mask.dilation_count = 2;
  problem.mask.mix_dilations = true;
  EXPECT_GT(portable.workspace_bytes(problem, gpu, Pass::forward), 4 * rows * 64 * 4);
}

}  // namespace
}  // namespace headroom::cuda
