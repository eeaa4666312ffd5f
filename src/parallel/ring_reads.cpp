#include "parallel/ring_reads.h"

#include <algorithm>
#include <functional>

#include "headroom/core/checked.h"
#include "parallel/rows_read.h"

namespace headroom {
namespace {

// The pieces of a rank, cut so that no transfer is longer than half of the largest chunk: three transfers
// are in memory at a time, in backward four, and five of gradients.
std::vector<Piece> cut_for_transfers(const std::vector<Piece>& pieces, std::int64_t most_tokens,
                                     const Mask& mask) {
  std::int64_t longest = std::max<std::int64_t>(divide_up(most_tokens, 2), 1);
  if (mask.block_rows > 0) longest = round_up(longest, mask.block_columns);
  std::vector<Piece> transfers;
  for (const Piece& piece : pieces) {
    const std::int64_t count = divide_up(piece.size(), longest);
    for (std::int64_t i = 0; i < count; ++i) {
      transfers.push_back({piece.begin + i * longest, std::min(piece.begin + (i + 1) * longest, piece.end)});
    }
  }
  return transfers;
}

Piece hull(const std::vector<std::vector<RowRun>>& rows) {
  Piece all{Mask::kUnlimited, 0};
  for (const std::vector<RowRun>& runs : rows) {
    for (const RowRun& run : runs) {
      all.begin = std::min(all.begin, run.begin);
      all.end = std::max(all.end, run.begin + (run.count - 1) * run.stride + 1);
    }
  }
  return all;
}

std::int64_t count_rows(const std::vector<std::vector<RowRun>>& rows) {
  std::int64_t count = 0;
  for (const std::vector<RowRun>& runs : rows) {
    for (const RowRun& run : runs) count += run.count;
  }
  return count;
}

// The mask that a schedule is made for. Documents that are not listed may begin anywhere, and segments of a
// dilation begin with them: the mask without both is the one that lets through whatever a batch may need.
Mask scheduled_mask(Mask mask, const AttentionForward& lists) {
  if (mask.max_documents == 0 || lists.document_starts.elements() > 0) return mask;
  mask.max_documents = 0;
  mask.dilation_count = 0;
  return mask;
}

}  // namespace

RingReads::RingReads(const AttentionProblem& whole, const AttentionForward& lists, const Partition& partition)
    : problem_(whole), lists_(lists), partition_(partition) {
  problem_.mask = scheduled_mask(whole.mask, lists);
  const std::int64_t most_tokens = partition.most_tokens();
  for (const std::vector<Piece>& pieces : partition.pieces) {
    parts_.push_back(partition.ranks() == 1 ? pieces : cut_for_transfers(pieces, most_tokens, whole.mask));
  }
  const Mask& mask = problem_.mask;
  one_interval_ = mask.max_documents == 0 && mask.dilation_count == 0 && mask.block_rows == 0;
  const auto seen_by = [&](const Piece& piece) -> Seen {
    if (!one_interval_) {
      const std::vector<Piece> read = intervals_read(problem_, lists, piece, {0, whole.seq_k});
      return read.empty() ? Seen{} : Seen{read.front(), read.back()};
    }
    const MaskView view = mask_view(problem_, lists, 0, 0);
    return {view.interval(piece.begin), view.interval(piece.end - 1)};
  };
  for (const std::vector<Piece>& pieces : partition.pieces) {
    std::vector<Seen>& seen = seen_.emplace_back();
    for (const Piece& piece : pieces) seen.push_back(seen_by(piece));
  }
}

void RingReads::add_pairs(int reader, std::size_t query_piece, Piece keys) {
  const Piece queries = partition_.pieces[static_cast<std::size_t>(reader)][query_piece];
  const auto add = [&](Piece interval, std::int64_t pairs) {
    if (pairs == 0) return;
    found_.push_back({static_cast<std::int64_t>(query_piece), queries, interval, pairs, false});
  };
  const auto& [first, last] = seen_[static_cast<std::size_t>(reader)][query_piece];
  const Piece seen{std::max(first.begin, keys.begin), std::min(last.end, keys.end)};
  if (seen.empty()) return;
  if (!one_interval_) {
    for (const Piece& interval : intervals_read(problem_, lists_, queries, keys)) {
      add(interval, count_pairs(problem_, lists_, queries, interval));
    }
    return;
  }
  // Both ends of what a query sees rise with the query.
  const bool all = last.begin <= seen.begin && first.end >= seen.end;
  add(seen,
      all ? checked_multiply(checked_multiply(queries.size(), seen.size()), problem_.batch * problem_.heads_q)
          : count_pairs(problem_, lists_, queries, seen));
}

void RingReads::read_part(int reader, Piece part) {
  found_.clear();
  intervals_.clear();
  for (std::size_t q = 0; q < partition_.pieces[static_cast<std::size_t>(reader)].size(); ++q) {
    add_pairs(reader, q, part);
  }
  for (const ChunkPair& pair : found_) intervals_.push_back(pair.keys);
  join(intervals_);
  for (const Piece& interval : intervals_) {
    Read read{.keys = interval, .first_pair = pairs_.size()};
    for (const ChunkPair& pair : found_) {
      if (interval.begin <= pair.keys.begin && pair.keys.end <= interval.end) pairs_.push_back(pair);
    }
    read.pair_count = pairs_.size() - read.first_pair;
    reads_.push_back(read);
  }
}

std::span<const RingReads::Read> RingReads::between(int reader, int owner) {
  reads_.clear();
  pairs_.clear();
  for (const Piece& part : parts(owner)) read_part(reader, part);
  return reads_;
}

std::vector<ChunkPair> RingReads::local(int rank) const {
  const std::vector<Piece>& pieces = partition_.pieces[static_cast<std::size_t>(rank)];
  std::vector<ChunkPair> local;
  for (std::size_t q = 0; q < pieces.size(); ++q) {
    bool first = true;
    const auto add = [&](Piece keys) {
      const std::int64_t pairs = count_pairs(problem_, lists_, pieces[q], keys);
      if (first || pairs > 0) local.push_back({static_cast<std::int64_t>(q), pieces[q], keys, pairs, first});
      first = false;
    };
    const auto is_own = [&](Piece part) {
      return part.begin >= pieces[q].begin && part.end <= pieces[q].end;
    };
    for (const Piece& part : parts(rank)) {
      if (is_own(part)) add(part);
    }
    for (const Piece& part : parts(rank)) {
      if (is_own(part)) continue;
      for (const Piece& keys : intervals_read(problem_, lists_, pieces[q], part)) add(keys);
    }
  }
  return local;
}

Transfer RingReads::transfer(const Read& read, int reader, int owner) const {
  Transfer transfer;
  transfer.owner = owner;
  transfer.reader = reader;
  transfer.keys = read.keys;
  const std::span<const ChunkPair> computed = pairs(read);
  transfer.pairs.assign(computed.begin(), computed.end());
  if (problem_.mask.dilation_count > 0) {
    for (std::int64_t b = 0; b < problem_.batch; ++b) {
      for (std::int64_t kv = 0; kv < problem_.heads_kv; ++kv) {
        transfer.rows.push_back(dilated_rows_read(
            problem_, lists_, b, kv, partition_.pieces[static_cast<std::size_t>(reader)], read.keys));
      }
    }
    transfer.keys = hull(transfer.rows);
    for (ChunkPair& pair : transfer.pairs) pair.keys = transfer.keys;
  }
  transfer.row_count = transfer.rows.empty() ? transfer.keys.size() * problem_.batch * problem_.heads_kv
                                             : count_rows(transfer.rows);
  return transfer;
}

std::int64_t RingReads::row_count(const Read& read, int reader, int owner) const {
  if (problem_.mask.dilation_count > 0) return transfer(read, reader, owner).row_count;
  return read.keys.size() * problem_.batch * problem_.heads_kv;
}

std::int64_t RingReads::most_slots() const {
  if (partition_.ranks() == 1) return 0;
  if (!one_interval_) return Mask::kUnlimited;  // a part may have any number of intervals that are read
  std::int64_t most = 0;                        // transfers in a step
  for (const std::vector<Piece>& parts : parts_) most = std::max<std::int64_t>(most, std::ssize(parts));
  return (partition_.ranks() - 1) * most;
}

std::uint64_t RingReads::shape(const Read& read, int reader, int owner) const {
  // Dilated pairs have the keys from the first row that is sent to the last.
  if (problem_.mask.dilation_count > 0) return shape_of(transfer(read, reader, owner).pairs);
  return shape_of(pairs(read));
}

RingReads::Largest RingReads::largest() {
  Largest most;
  const auto consider = [&](const Read& read, int reader, int owner) {
    if (problem_.mask.dilation_count == 0) {
      most.keys = std::max(most.keys, read.keys.size());
      return;
    }
    const Transfer sent = transfer(read, reader, owner);
    most.keys = std::max(most.keys, sent.keys.size());
    most.rows = std::max(most.rows, sent.row_count);
  };
  struct Part {
    int owner;
    Piece keys;
  };
  std::vector<Part> longest_first;
  for (int owner = 0; owner < partition_.ranks(); ++owner) {
    for (const Piece& part : parts(owner)) longest_first.push_back({owner, part});
  }
  std::ranges::stable_sort(longest_first, std::greater{}, [](const Part& part) { return part.keys.size(); });
  // Of keys before its queries a rank sees those that the window reaches, and no more of a part than it has.
  // So the first part of which somebody reads that many ends the search.
  const auto bound = [&](const Part& part) {
    if (!one_interval_ || !problem_.mask.causal) return part.keys.size();
    return std::min(part.keys.size(), problem_.mask.window_left);
  };
  const bool packs = problem_.mask.dilation_count > 0;
  for (const Part& part : longest_first) {
    for (int reader = 0; reader < partition_.ranks() && (packs || most.keys < bound(part)); ++reader) {
      if (reader == part.owner) continue;
      reads_.clear();
      pairs_.clear();
      read_part(reader, part.keys);
      for (const Read& read : reads_) consider(read, reader, part.owner);
    }
  }
  if (problem_.mask.dilation_count == 0) most.rows = most.keys * problem_.batch * problem_.heads_kv;
  return most;
}

std::uint64_t shape_of(std::span<const ChunkPair> pairs) {
  std::uint64_t hash = 14'695'981'039'346'656'037ULL;
  const auto mix = [&](std::int64_t value) {
    hash ^= static_cast<std::uint64_t>(value);
    hash *= 0x9E37'79B9'7F4A'7C15ULL;
    hash ^= hash >> 29;
  };
  for (const ChunkPair& pair : pairs) {
    mix(pair.query_piece);
    mix(pair.queries.size());
    mix(pair.keys.size());
    mix(pair.first ? 1 : 0);
  }
  return hash;
}

}  // namespace headroom
