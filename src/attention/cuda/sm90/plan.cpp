#include "attention/cuda/sm90/plan.h"

#include <algorithm>

#include "attention/implementations.h"
#include "core/pieces.h"

namespace headroom {
namespace cuda::sm90 {
namespace {

// Of a part of a problem, those of the whole.
KeyHeads whole_key_heads(const AttentionProblem& problem) {
  return problem.whole.value_or(KeyHeads{.sequences = problem.batch, .heads = problem.heads_kv});
}

// Every rate-th row from a head's offset on, segment after segment without a gap, and the same of both sides.
bool divides_evenly(const AttentionProblem& problem) {
  const Mask& mask = problem.mask;
  if (!problem.same_positions() || problem.query_start() != 0) return false;
  if (mask.max_documents > 0 || (mask.dilation_count > 1 && !mask.mix_dilations)) return false;
  return std::all_of(mask.dilations.begin(), mask.dilations.begin() + mask.dilation_count,
                     [&](const Dilation& dilation) {
                       return problem.seq_q % dilation.rate == 0 &&
                              (dilation.segment % dilation.rate == 0 || dilation.segment >= problem.seq_q);
                     });
}

// Blocks that divide a group's heads, where there are fewer key tiles than keep a GPU busy to the end: then
// at least as many as give every multiprocessor eight, or one for each head. Their heads differ by one at
// most. The launches of a dilated pattern are of one head each.
std::int64_t parts_of_group(const AttentionProblem& problem, int tile_keys) {
  constexpr std::int64_t kFewTiles = 192;
  constexpr std::int64_t kEnoughTiles = 1024;
  if (dilated(problem) || problem.heads_kv == 0) return 1;
  const KeyHeads whole = whole_key_heads(problem);
  const std::int64_t tiles =
      std::max<std::int64_t>(whole.sequences * whole.heads * divide_up(problem.seq_k, tile_keys), 1);
  if (tiles >= kFewTiles) return 1;
  const std::int64_t wanted = divide_up(kEnoughTiles, tiles);
  const std::int64_t group = problem.heads_q / problem.heads_kv;
  return divide_up(group, std::max<std::int64_t>(group / wanted, 1));
}

// Returns whether so few key tiles add to the dQ of a query that blocks are faster in turns than in free
// order, where dQ has to be zeroed first. Measured on an H200: up to 17 % faster with 512 keys, 2 % with
// 5,003, 1 % slower with 16,384. Documents count as if they were of one length.
bool few_add_to_queries(const AttentionProblem& problem, int tile_keys) {
  constexpr std::int64_t kFewKeyTiles = 48;
  const Mask& mask = problem.mask;
  const std::int64_t right = mask.causal ? 0 : mask.window_right;
  std::int64_t keys = problem.seq_k / std::max<std::int64_t>(mask.max_documents, 1);
  if (mask.window_left < keys && right < keys) keys = std::min(keys, mask.window_left + 1 + right);
  return divide_up(keys, tile_keys) <= kFewKeyTiles;
}

// Block lists in tiles, without memory. What they take is bounded by the lists, not by the square of the
// length.
Visits plan_visits(const AttentionProblem& problem, int tile_rows, int tile_keys) {
  Visits visits;
  visits.tile_rows = tile_rows;
  visits.tile_keys = tile_keys;
  visits.lists = BlockLists::of(problem.mask, problem.seq_q, problem.seq_k);
  visits.query_tiles = static_cast<std::int32_t>(divide_up(problem.seq_q, tile_rows));
  visits.key_tiles = static_cast<std::int32_t>(divide_up(problem.seq_k, tile_keys));
  visits.capacity = visits.most_visits();
  return visits;
}

// The way back, from key tiles to queries, is for blocks that keep keys.
Visits take_visits(const AttentionProblem& problem, int tile_rows, int tile_keys, std::int32_t* lists,
                   bool way_back, Pieces& pieces) {
  Visits visits = plan_visits(problem, tile_rows, tile_keys);
  const std::int64_t heads = problem.batch * problem.heads_q;
  const std::int64_t tiles = checked_multiply(heads, visits.query_tiles);
  visits.lists.blocks = lists;
  visits.counts = pieces.take<std::int32_t>(tiles);
  visits.entries = pieces.take<std::int32_t>(checked_multiply(tiles, visits.capacity));
  if (way_back) {
    visits.last = pieces.take<std::int32_t>(checked_multiply(heads, visits.key_tiles));
    visits.before = pieces.take<std::int32_t>(checked_multiply(tiles, visits.capacity));
  }
  return visits;
}

// K/V heads, or parts of their groups, that waves may count on in one launch: in free order those of all
// sequences. In turns those that are in one launch also where a training step runs backward in parts, which
// it does from 2.25 GiB of workspace on, most of it sums of dQ.
std::int64_t heads_together(const AttentionProblem& problem, const Plan& plan) {
  constexpr std::int64_t kInParts = std::int64_t{2} << 30;  // bytes of sums
  const KeyHeads whole = whole_key_heads(problem);
  const std::int64_t group = problem.heads_q / problem.heads_kv;
  const auto fit = [&](std::int64_t key_heads) {
    return !plan.turns || key_heads * group * problem.seq_q * plan.tiles.head_dim * 4 < kInParts;
  };
  const std::int64_t all = whole.sequences * whole.heads;
  return plan.key_parts * (fit(all) ? all : fit(whole.heads) ? whole.heads : 1);
}

}  // namespace

IntervalsOfPlaces IntervalsOfPlaces::of(const AttentionProblem& problem, const Dilation& dilation) {
  constexpr std::int64_t kUnlimited = std::int64_t{1} << 61;  // above any position; sums with it fit
  const Mask& mask = problem.mask;
  const std::int64_t queries = problem.seq_q / dilation.rate;
  const std::int64_t keys = problem.seq_k / dilation.rate;
  const std::int64_t before = std::min(mask.window_left / dilation.rate, kUnlimited);
  const std::int64_t after = mask.causal ? 0 : std::min(mask.window_right / dilation.rate, kUnlimited);
  // Query p stands at key p + shift.
  const std::int64_t shift = problem.query_start() - problem.key_start();
  // A shift by more than there are places is as good as one by so many: 32 bits hold the sums.
  const auto intervals = [](std::int64_t places, std::int64_t others, std::int64_t begin, std::int64_t end) {
    return Intervals{.others = static_cast<int>(others),
                     .begin_shift = clamped(begin, -places, others),
                     .end_shift = clamped(end, -places, others)};
  };
  IntervalsOfPlaces of{.seen = intervals(queries, keys, shift - before, shift + after + 1),
                       .seen_by = intervals(keys, queries, -shift - after, -shift + before + 1)};
  if (dilation.segment > 0 && dilation.segment < problem.seq_q) {
    of.seen.segment = of.seen_by.segment = static_cast<int>(dilation.segment / dilation.rate);
  }
  return of;
}

Plan Plan::of(const AttentionProblem& problem) {
  Plan plan;
  if (dilated(problem) && !divides_evenly(problem)) {
    plan.source = Source::lists;
  } else if (problem.mask.max_documents > 0) {
    plan.source = Source::tables;
  }
  plan.general = problem.softcap > 0 || problem.mask.block_rows > 0;
  plan.tiles = head_tiles(static_cast<int>(problem.head_dim), plan.general);
  const int keys = plan.tiles.backward.keys;
  plan.turns = !plan.tiles.queries_apart() && (problem.deterministic || few_add_to_queries(problem, keys));
  plan.key_parts = parts_of_group(problem, keys);
  return plan;
}

// Under a causal mask the tiles of a wave that begins at the last query end one after the other, each at the
// first query that sees it. If the next ones began at the last query too, they would follow each other at
// that distance; and where the rows between the first and the last of them (Q, dO and, in f32, dQ, of all
// heads that a block sums over) are more than the L2 holds, each would read them from memory again. From its
// first query up a tile of the next wave meets the others at every query, and they end together.
//
// In turns a tile that goes up waits until the tiles before it, which go down, are through. So blocks that
// the heads of a section leave over wait for a whole wave, and so do most blocks of a launch that has fewer
// heads.
Waves plan_waves(const AttentionProblem& problem, const DeviceDescription& device, const Plan& plan) {
  const Mask& mask = problem.mask;
  if (!mask.causal || !problem.same_positions() || mask.window_left < problem.seq_q || dilated(problem) ||
      mask.max_documents > 0 || mask.block_rows > 0) {
    return {};
  }
  const std::int64_t tiles = divide_up(problem.seq_k, plan.tiles.backward.keys);
  if (3 * tiles <= device.cores) return {};  // few tiles of a head follow each other
  const std::int64_t part_heads = divide_up(problem.heads_q / problem.heads_kv, plan.key_parts);
  const std::int64_t row_bytes =
      std::int64_t{plan.tiles.head_dim} * (2 + 2 + (plan.tiles.queries_apart() ? 0 : 4));
  const std::int64_t wave_keys = std::int64_t{device.cores} * plan.tiles.backward.keys;
  if (wave_keys * part_heads * row_bytes <= device.l2_bytes) return {};
  // The last wave may be a quarter short: four heads of 128 tiles count as four waves of 132.
  const auto heads_of = [&](std::int64_t waves) {
    return divide_up(waves * device.cores - device.cores / 4, tiles);
  };
  const std::int64_t heads = heads_together(problem, plan);
  if (heads < heads_of(2)) return {};
  // In free order blocks fall out of step with time. In turns few tiles of a head wait for each other where
  // four heads are side by side.
  const std::int64_t wanted = plan.turns ? std::max<std::int64_t>(heads_of(2), 4) : heads_of(4);
  std::int64_t side_by_side = heads / std::max<std::int64_t>(heads / wanted, 1);
  if (plan.turns) {
    while (heads % side_by_side != 0) ++side_by_side;
    constexpr std::int64_t kOneLeftOverOf = 16;  // blocks; 6 of 132 left over cost no more than none
    if (kOneLeftOverOf * (device.cores % side_by_side) > device.cores) return {};
  }
  return {.heads = static_cast<int>(side_by_side),
          .tiles = static_cast<int>(std::max<std::int64_t>(device.cores / side_by_side, 1))};
}

QueryState QueryState::of(const AttentionProblem& problem, const Plan& plan, Pieces& pieces) {
  const std::int64_t places =
      dilated(problem) ? most_dilated_rows(problem, problem.seq_q, problem.query_start()) : problem.seq_q;
  QueryState state;
  state.padded_places = round_up(places, plan.tiles.backward.queries);
  const std::int64_t padded = checked_multiply(problem.batch * problem.heads_q, state.padded_places);
  state.lse_log2 = pieces.take<float>(padded);
  state.minus_delta = pieces.take<float>(padded);
  if (plan.tiles.queries_apart()) return state;
  state.sums_bytes = checked_multiply(checked_multiply(padded, plan.tiles.head_dim), 4);
  state.sums = pieces.take<float>(state.sums_bytes / 4);
  return state;
}

std::int64_t open_bytes(const AttentionProblem& problem) {
  const Plan plan = Plan::of(problem);
  if (dilated(problem) || problem.mask.block_rows > 0 || plan.tiles.queries_apart() ||
      problem.dtype_of_output() != problem.dtype) {
    return 0;
  }
  Pieces pieces(nullptr);
  static_cast<void>(QueryState::of(problem, plan, pieces));
  return pieces.bytes();
}

Workspace::Workspace(const AttentionProblem& problem, Pass pass, std::byte* base, std::byte* open)
    : plan(Plan::of(problem)) {
  Pieces pieces(base);
  take(problem, pass,
       {.intervals = plan.source != Source::formula,
        .row_statistics = problem.sinks,
        .query_gradient = problem.mask.patterns_per_head() > 1,
        .key_parts = plan.key_parts},
       pieces);
  const bool blocks = problem.mask.block_rows > 0;
  std::int32_t* block_lists = nullptr;
  if (blocks) {
    const BlockLists of = BlockLists::of(problem.mask, problem.seq_q, problem.seq_k);
    block_lists = pieces.take<std::int32_t>(
        checked_multiply(checked_multiply(problem.batch * problem.heads_q, of.lists_per_head), of.stride));
  }
  counter_bytes = kNextTileBytes;
  if (pass == Pass::forward) {
    if (blocks) {
      const ForwardTile& tile = plan.tiles.forward;
      visits = take_visits(problem, tile.rows(), tile.keys, block_lists, false, pieces);
    }
    counters = pieces.take<std::int32_t>(counter_bytes / 4);
    bytes = pieces.bytes();
    return;
  }

  const BackwardTile& tile = plan.tiles.backward;
  if (plan.source != Source::formula) {
    const std::int64_t count = problem.batch * (lists.per_head ? problem.heads_q : 1);
    seen_by_first = pieces.take<std::int32_t>(checked_multiply(count, lists.key_capacity));
    seen_by_last = pieces.take<std::int32_t>(checked_multiply(count, lists.key_capacity));
  }
  if (blocks) {
    visits = take_visits(problem, tile.queries, tile.keys, block_lists, true, pieces);
  }
  if (blocks && plan.tiles.queries_apart()) {
    const QueriesTile& apart = plan.tiles.queries;
    query_visits = take_visits(problem, apart.queries, apart.keys, block_lists, false, pieces);
  }
  if (problem.dtype_of_output() != problem.dtype) {
    output_gradient = pieces.take<std::uint16_t>(
        checked_multiply(checked_multiply(problem.batch * problem.heads_q, problem.seq_q), problem.head_dim));
  }
  Pieces open_pieces(open);
  queries = QueryState::of(problem, plan, problem.open_queries ? open_pieces : pieces);
  if (plan.turns) {
    counter_bytes += 4 * (problem.batch * problem.heads_q * queries.padded_places / tile.queries);
  }
  counters = pieces.take<std::int32_t>(counter_bytes / 4);
  bytes = pieces.bytes();
}

}  // namespace cuda::sm90

namespace {

Support supports(const AttentionProblem& problem, const DeviceDescription& device) {
  if (Support support = cuda::supports_on_gpu(problem, device); !support) return support;
  if (device.compute_major != 9 || device.compute_minor != 0) {
    return Support::no(fmt::format("needs compute capability 9.0, this is {}.{}", device.compute_major,
                                   device.compute_minor));
  }
  if (problem.dtype == DType::f32) return Support::no("multiplies 16-bit elements, this is f32");
  if (problem.row_alignment_bytes < cuda::sm90::kRowAlignmentBytes) {
    return Support::no(
        fmt::format("copies rows that start at multiples of {} bytes, these start at multiples of {}",
                    cuda::sm90::kRowAlignmentBytes, problem.row_alignment_bytes));
  }
  constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;
  if (problem.seq_q > kMaxRows || problem.seq_k > kMaxRows) {
    return Support::no(
        fmt::format("seq_q {} or seq_k {} is over {}", problem.seq_q, problem.seq_k, kMaxRows));
  }
  if (problem.mask.block_rows > 0) {
    const cuda::sm90::BackwardTile tile = cuda::sm90::Plan::of(problem).tiles.backward;
    const cuda::sm90::Visits visits = cuda::sm90::plan_visits(problem, tile.queries, tile.keys);
    constexpr std::int64_t kMaxVisits = std::int64_t{1} << 31;
    if (std::int64_t{visits.query_tiles} * visits.capacity > kMaxVisits) {
      return Support::no(fmt::format("block lists may come to {} visits for each of {} tiles, over {} in all",
                                     visits.capacity, visits.query_tiles, kMaxVisits));
    }
  }
  return Support::yes();
}

}  // namespace

const AttentionImplementation& sm90_attention() {
  static constexpr AttentionImplementation kRow{
      .name = "sm90",
      .supports = supports,
      .workspace_bytes = [](const AttentionProblem& problem, const DeviceDescription&,
                            Pass pass) { return cuda::sm90::Workspace(problem, pass, nullptr).bytes; },
      .saved_bytes = [](const AttentionProblem&) -> std::int64_t { return 0; },
      .forward = [](const AttentionProblem& problem, const AttentionForward& views, TensorView workspace,
                    const Stream& stream) { cuda::sm90::forward(problem, views, workspace, stream); },
      .backward = [](const AttentionProblem& problem, const AttentionBackward& views, TensorView workspace,
                     const Stream& stream) { cuda::sm90::backward(problem, views, workspace, stream); },
      .open_bytes = cuda::sm90::open_bytes};
  return kRow;
}

}  // namespace headroom
