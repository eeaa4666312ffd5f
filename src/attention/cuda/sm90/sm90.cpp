#include "attention/cuda/sm90/sm90.h"

#include <algorithm>

#include "attention/cuda/steps.h"
#include "attention/implementations.h"
#include "core/pieces.h"

namespace headroom {
namespace sm90 {
namespace {

bool dilated(const AttentionProblem& problem) {
  return problem.mask.dilation_count > 0;
}

// Every rate-th row from a head's offset on, segment after segment without a gap.
bool divides_evenly(const AttentionProblem& problem) {
  const Mask& mask = problem.mask;
  if (mask.max_documents > 0 || (mask.dilation_count > 1 && !mask.mix_dilations)) return false;
  return std::all_of(mask.dilations.begin(), mask.dilations.begin() + mask.dilation_count,
                     [&](const Dilation& dilation) {
                       return problem.seq_q % dilation.rate == 0 &&
                              (dilation.segment % dilation.rate == 0 || dilation.segment >= problem.seq_q);
                     });
}

// Queries and keys of a kernel's tile.
struct TileSize {
  int rows;
  int keys;
};

TileSize forward_size(const AttentionProblem& problem) {
  const ForwardTile tile = forward_tile(static_cast<int>(problem.head_dim), true);
  return {64 * tile.consumers, tile.keys};
}

TileSize backward_size(const AttentionProblem& problem) {
  const int head_dim = backward_head_dim(static_cast<int>(problem.head_dim));
  return {backward_tile(head_dim, true).queries, backward_keys(head_dim)};
}

// Block lists in tiles, without memory. What they take is bounded by the lists, not by the square of the
// length.
cuda::Visits plan_visits(const AttentionProblem& problem, TileSize tile) {
  cuda::Visits visits;
  visits.tile_rows = tile.rows;
  visits.tile_keys = tile.keys;
  visits.lists = cuda::BlockLists::of(problem.mask, problem.seq_q, problem.seq_k);
  visits.query_tiles = static_cast<std::int32_t>(divide_up(problem.seq_q, visits.tile_rows));
  visits.key_tiles = static_cast<std::int32_t>(divide_up(problem.seq_k, visits.tile_keys));
  visits.capacity = visits.most_visits();
  return visits;
}

// The way back, from key tiles to queries, is for blocks that keep keys.
cuda::Visits take_visits(const AttentionProblem& problem, TileSize tile, std::int32_t* lists, bool way_back,
                         Pieces& pieces) {
  cuda::Visits visits = plan_visits(problem, tile);
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

}  // namespace

Source source_of(const AttentionProblem& problem) {
  if (dilated(problem) && !divides_evenly(problem)) return Source::lists;
  return problem.mask.max_documents > 0 ? Source::tables : Source::formula;
}

bool is_general(const AttentionProblem& problem) {
  return problem.softcap > 0 || problem.mask.block_rows > 0;
}

std::int64_t most_places(const AttentionProblem& problem) {
  return dilated(problem) ? most_dilated_rows(problem, problem.seq_q, problem.query_start()) : problem.seq_q;
}

Memory::Memory(const AttentionProblem& problem, Pass pass, std::byte* base) {
  const bool mixes = problem.mask.patterns_per_head() > 1;
  const Source source = source_of(problem);
  const std::int64_t statistics = checked_multiply(problem.batch * problem.heads_q, problem.seq_q);
  const std::int64_t q_elements = checked_multiply(statistics, problem.head_dim);
  const std::int64_t k_elements =
      checked_multiply(problem.batch * problem.seq_k * problem.heads_kv, problem.head_dim);
  Pieces pieces(base);
  const std::int64_t count = problem.batch * (source == Source::lists ? problem.heads_q : 1);
  lists.capacity = lists.key_capacity = most_places(problem);
  if (source == Source::lists) cuda::take_dilated_lists(problem, lists, pieces);
  if (source == Source::tables) {
    lists.first = pieces.take<std::int32_t>(checked_multiply(count, lists.capacity));
    lists.last = pieces.take<std::int32_t>(checked_multiply(count, lists.capacity));
  }
  std::int32_t* block_lists = nullptr;
  const bool blocks = problem.mask.block_rows > 0;
  if (blocks) {
    const cuda::BlockLists of = cuda::BlockLists::of(problem.mask, problem.seq_q, problem.seq_k);
    block_lists = pieces.take<std::int32_t>(
        checked_multiply(checked_multiply(problem.batch * problem.heads_q, of.lists_per_head), of.stride));
  }
  counter_bytes = kNextTileBytes;
  if (pass == Pass::forward) {
    if (blocks) visits = take_visits(problem, forward_size(problem), block_lists, false, pieces);
    counters = pieces.take<std::int32_t>(counter_bytes / 4);
    if (mixes) output = pieces.take<float>(q_elements);
    bytes = pieces.bytes();
    return;
  }

  const auto head_dim = static_cast<int>(problem.head_dim);
  const int kernel_dim = backward_head_dim(head_dim);
  const std::int64_t tile = backward_tile(kernel_dim, is_general(problem)).queries;
  padded_places = round_up(most_places(problem), tile);
  adds_query_gradient = mixes;
  adds_key_gradients = mixes || (dilated(problem) && problem.heads_q > problem.heads_kv);
  if (source != Source::formula) {
    const std::int64_t key_capacity = source == Source::lists ? lists.capacity : problem.seq_k;
    seen_by_first = pieces.take<std::int32_t>(checked_multiply(count, key_capacity));
    seen_by_last = pieces.take<std::int32_t>(checked_multiply(count, key_capacity));
  }
  const std::int64_t padded = checked_multiply(problem.batch * problem.heads_q, padded_places);
  const bool apart = queries_apart(kernel_dim);
  if (blocks) visits = take_visits(problem, backward_size(problem), block_lists, true, pieces);
  if (blocks && apart) {
    query_visits = take_visits(problem, {kApartTile.queries, kApartTile.keys}, block_lists, false, pieces);
  }
  counter_bytes = kNextTileBytes + (problem.deterministic && !apart ? 4 * (padded / tile) : 0);
  counters = pieces.take<std::int32_t>(counter_bytes / 4);
  lse_log2 = pieces.take<float>(padded);
  delta = pieces.take<float>(padded);
  if (!apart) {
    query_sums_bytes = checked_multiply(checked_multiply(padded, kernel_dim), 4);
    query_sums = pieces.take<float>(query_sums_bytes / 4);
  }
  if (problem.sinks) {
    row_shift = pieces.take<float>(statistics);
    row_dot = pieces.take<float>(statistics);
  }
  if (adds_query_gradient) query_gradient = pieces.take<float>(q_elements);
  if (adds_key_gradients) {
    key_gradient = pieces.take<float>(k_elements);
    value_gradient = pieces.take<float>(k_elements);
  }
  if (problem.mask.detach_mixing) {
    output = pieces.take<float>(q_elements);
    pattern_lse = pieces.take<float>(statistics);
  }
  bytes = pieces.bytes();
}

#if !defined(HEADROOM_WITH_CUDA)
void forward(const AttentionProblem&, const AttentionForward&, const TensorView&, const Stream&) {
  fail(ErrorKind::runtime, "this build has no CUDA kernels; configure with the cuda preset");
}
void backward(const AttentionProblem&, const AttentionBackward&, const TensorView&, const Stream&) {
  fail(ErrorKind::runtime, "this build has no CUDA kernels; configure with the cuda preset");
}
#endif

}  // namespace sm90

namespace {

Support supports(const AttentionProblem& problem, const DeviceDescription& device) {
  if (Support support = cuda::supports_intervals(problem, device); !support) return support;
  if (device.compute_major != 9 || device.compute_minor != 0) {
    return Support::no(fmt::format("needs compute capability 9.0, this is {}.{}", device.compute_major,
                                   device.compute_minor));
  }
  if (problem.dtype == DType::f32) return Support::no("multiplies 16-bit elements, this is f32");
  if (problem.dtype_of_output() != problem.dtype) {
    return Support::no(fmt::format("writes its output as {}, not as {}", name(problem.dtype),
                                   name(problem.dtype_of_output())));
  }
  if (problem.chunk) return Support::no("takes whole sequences, not chunks");
  if (problem.resume) return Support::no("does not resume from an earlier result");
  if ((problem.mask.max_documents > 0 || problem.mask.dilation_count > 0) && !problem.same_positions()) {
    return Support::no(fmt::format("documents and dilation need seq_q {} and seq_k {} to be equal",
                                   problem.seq_q, problem.seq_k));
  }
  constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;
  if (problem.seq_q > kMaxRows || problem.seq_k > kMaxRows) {
    return Support::no(
        fmt::format("seq_q {} or seq_k {} is over {}", problem.seq_q, problem.seq_k, kMaxRows));
  }
  if (problem.mask.block_rows > 0) {
    const cuda::Visits visits = sm90::plan_visits(problem, sm90::backward_size(problem));
    constexpr std::int64_t kMaxVisits = std::int64_t{1} << 31;
    if (std::int64_t{visits.query_tiles} * visits.capacity > kMaxVisits) {
      return Support::no(fmt::format("block lists may come to {} visits for each of {} tiles, over {} in all",
                                     visits.capacity, visits.query_tiles, kMaxVisits));
    }
  }
  return Support::yes();
}

std::int64_t workspace_bytes(const AttentionProblem& problem, const DeviceDescription&, Pass pass) {
  return sm90::Memory(problem, pass, nullptr).bytes;
}

void check_workspace(const AttentionProblem& problem, Pass pass, const TensorView& workspace) {
  const std::int64_t needed = sm90::Memory(problem, pass, nullptr).bytes;
  check(workspace.elements() >= needed, "attention needs a workspace of {} bytes, not {}", needed,
        workspace.elements());
}

}  // namespace

const AttentionImplementation& sm90_attention() {
  static constexpr AttentionImplementation kSm90{
      "sm90",
      supports,
      workspace_bytes,
      [](const AttentionProblem&) -> std::int64_t { return 0; },
      [](const AttentionProblem& problem, const AttentionForward& views, TensorView workspace,
         const Stream& stream) {
        check_workspace(problem, Pass::forward, workspace);
        sm90::forward(problem, views, workspace, stream);
      },
      [](const AttentionProblem& problem, const AttentionBackward& views, TensorView workspace,
         const Stream& stream) {
        check_workspace(problem, Pass::backward, workspace);
        sm90::backward(problem, views, workspace, stream);
      }};
  return kSm90;
}

}  // namespace headroom
