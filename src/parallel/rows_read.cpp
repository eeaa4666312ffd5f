#include "parallel/rows_read.h"

#include <algorithm>

#include "headroom/core/checked.h"

namespace headroom {
namespace {

Piece intersect(Piece a, Piece b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

// What consecutive queries see of the keys, of one head's mask over the whole sequence.
Piece seen(const MaskView& view, Piece queries, Piece keys) {
  return intersect({view.interval(queries.begin).begin, view.interval(queries.end - 1).end}, keys);
}

// The members of the dilated pattern from `begin` on that lie in an interval.
RowRun members(const MaskView& view, std::int64_t segment_begin, Piece interval) {
  const std::int64_t rate = view.dilation.rate;
  const std::int64_t first = segment_begin + view.dilation_offset;
  const std::int64_t begin =
      first + divide_up(std::max<std::int64_t>(interval.begin - first, 0), rate) * rate;
  return {begin, begin < interval.end ? divide_up(interval.end - begin, rate) : 0, rate};
}

// Two pieces that have no position in common share one segment at most: the one that the queries' end nearer
// to the keys is in.
RowRun dilated_run(const MaskView& view, Piece queries, Piece keys) {
  const Piece segment = view.segment(keys.begin < queries.begin ? queries.begin : queries.end - 1);
  const Piece within = intersect(segment, queries);
  const RowRun asking = members(view, segment.begin, within);
  if (asking.count == 0) return {};
  const Piece span{asking.begin, asking.begin + (asking.count - 1) * asking.stride + 1};
  const Piece read = intersect(seen(view, span, keys), segment);
  if (read.empty()) return {};
  return members(view, segment.begin, read);
}

// Runs of several patterns, or of sequences of queries that read the same rows: each row once.
std::vector<RowRun> row_by_row(const std::vector<RowRun>& runs) {
  std::vector<std::int64_t> rows;
  for (const RowRun& run : runs) {
    for (std::int64_t i = 0; i < run.count; ++i) rows.push_back(run.begin + i * run.stride);
  }
  std::ranges::sort(rows);
  rows.erase(std::ranges::unique(rows).begin(), rows.end());
  std::vector<RowRun> once;
  for (const std::int64_t row : rows) {
    if (!once.empty() && once.back().begin + once.back().count == row) {
      ++once.back().count;
    } else {
      once.push_back({row, 1, 1});
    }
  }
  return once;
}

bool same_residue(const RowRun& a, const RowRun& b) {
  return a.stride == b.stride && (a.begin - b.begin) % a.stride == 0;
}

// Key blocks that some query tile of the piece lists and sees a key of.
std::vector<Piece> blocks_read(const MaskView& view, Piece queries, Piece keys) {
  std::vector<Piece> blocks;
  for (std::int64_t q = queries.begin; q < queries.end; q += view.block_rows) {
    const Piece tile{q, std::min(q + view.block_rows, queries.end)};
    const Piece range = seen(view, tile, keys);
    if (range.empty()) continue;
    const std::int32_t* list = view.blocks + q / view.block_rows * view.block_stride;
    for (std::int64_t i = 0; i < view.max_blocks_per_row && list[i] >= 0; ++i) {
      const std::int64_t begin = list[i] * view.block_columns;
      const Piece block = intersect({begin, begin + view.block_columns}, keys);
      if (!intersect(block, range).empty()) blocks.push_back(block);
    }
  }
  return joined(std::move(blocks));
}

}  // namespace

void join(std::vector<Piece>& pieces) {
  std::ranges::sort(pieces, {}, &Piece::begin);
  std::size_t apart = 0;  // those before it are joined
  for (const Piece piece : pieces) {
    if (piece.empty()) continue;
    if (apart > 0 && piece.begin <= pieces[apart - 1].end) {
      pieces[apart - 1].end = std::max(pieces[apart - 1].end, piece.end);
    } else {
      pieces[apart++] = piece;
    }
  }
  pieces.resize(apart);
}

std::vector<Piece> joined(std::vector<Piece> pieces) {
  join(pieces);
  return pieces;
}

std::vector<Piece> intervals_read(const AttentionProblem& whole, const AttentionForward& lists, Piece queries,
                                  Piece keys) {
  if (queries.empty() || keys.empty()) return {};
  const Mask& mask = whole.mask;
  std::vector<Piece> read;
  const bool same_sequences = mask.max_documents == 0 && mask.block_rows == 0;
  for (std::int64_t b = 0; b < (same_sequences ? 1 : whole.batch); ++b) {
    if (mask.block_rows > 0) {
      for (std::int64_t kv = 0; kv < whole.heads_kv; ++kv) {
        const std::int64_t head = kv * (whole.heads_q / whole.heads_kv);
        for (const Piece& run : blocks_read(mask_view(whole, lists, b, head), queries, keys)) {
          read.push_back(run);
        }
      }
      continue;
    }
    // Segments differ from pattern to pattern. The first head of each pattern stands for the others.
    const bool dealt = mask.dilation_count > 0 && !mask.mix_dilations;
    const std::int64_t heads = dealt ? divide_up(whole.heads_q, mask.dilation_count) : whole.heads_q;
    for (std::int64_t h = 0; h < whole.heads_q; h += heads) {
      for (int pattern = 0; pattern < mask.patterns_per_head(); ++pattern) {
        read.push_back(seen(mask_view(whole, lists, b, h, pattern), queries, keys));
      }
    }
  }
  read = joined(std::move(read));
  // Sequences of a batch share their transfers: without block lists these are one interval.
  if (mask.block_rows == 0 && read.size() > 1) return {{read.front().begin, read.back().end}};
  return read;
}

std::vector<RowRun> dilated_rows_read(const AttentionProblem& whole, const AttentionForward& lists,
                                      std::int64_t batch, std::int64_t head_kv,
                                      std::span<const Piece> queries, Piece keys) {
  const std::int64_t group = whole.heads_q / whole.heads_kv;
  std::vector<RowRun> runs;
  bool apart = true;
  for (std::int64_t h = head_kv * group; h < (head_kv + 1) * group; ++h) {
    for (int pattern = 0; pattern < whole.mask.patterns_per_head(); ++pattern) {
      for (const Piece& piece : queries) {
        const RowRun run = dilated_run(mask_view(whole, lists, batch, h, pattern), piece, keys);
        if (run.count == 0 || std::ranges::find(runs, run) != runs.end()) continue;
        // Runs of one pattern at different offsets have no row in common.
        for (const RowRun& other : runs) apart &= run.stride == other.stride && !same_residue(run, other);
        runs.push_back(run);
      }
    }
  }
  return apart ? runs : row_by_row(runs);
}

}  // namespace headroom
