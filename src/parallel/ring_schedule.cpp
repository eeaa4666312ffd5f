#include "headroom/parallel/ring_schedule.h"

#include <algorithm>

#include "headroom/core/checked.h"
#include "parallel/rows_read.h"

namespace headroom {
namespace {

// The pieces of a rank, cut so that no transfer is longer than half of the largest chunk: two transfers are
// in memory at a time, and three of gradients.
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

Support ring_supports(const AttentionProblem& whole) {
  if (whole.chunk || whole.seq_q != whole.seq_k) {
    return Support::no("ranks divide a whole sequence with as many queries as keys");
  }
  if (whole.resume) return Support::no("ranks begin with no earlier result");
  if (whole.mask.detach_mixing) return Support::no("detached mixing takes no chunks");
  if (whole.mask.dilation_count > 0 && whole.mask.block_rows > 0) {
    return Support::no("no implementation combines block lists with dilation");
  }
  return Support::yes();
}

RingSchedule::RingSchedule(const AttentionProblem& whole, const AttentionForward& lists, Partition partition)
    : problem_(whole), partition_(std::move(partition)), local_(partition_.pieces.size()) {
  validate(whole);
  const Support support = ring_supports(whole);
  check(bool{support}, "a ring cannot run this attention: {}", support.reason());
  problem_.mask = scheduled_mask(whole.mask, lists);
  std::vector<std::vector<Piece>> parts;  // [owner]
  for (const std::vector<Piece>& pieces : partition_.pieces) {
    parts.push_back(ranks() == 1 ? pieces : cut_for_transfers(pieces, partition_.most_tokens(), whole.mask));
  }
  for (int rank = 0; rank < ranks(); ++rank) add_local(lists, parts, rank);
  for (std::int64_t step = 1; step < ranks(); ++step) add_step(lists, parts, step);
  index_transfers();
  problem_.mask = whole.mask;
}

void RingSchedule::add_local(const AttentionForward& lists, const std::vector<std::vector<Piece>>& parts,
                             int rank) {
  const std::vector<Piece>& pieces = partition_.pieces[static_cast<std::size_t>(rank)];
  std::vector<ChunkPair>& local = local_[static_cast<std::size_t>(rank)];
  for (std::size_t q = 0; q < pieces.size(); ++q) {
    bool first = true;
    const auto add = [&](Piece keys) {
      const std::int64_t pairs = count_pairs(problem_, lists, pieces[q], keys);
      if (first || pairs > 0) local.push_back({static_cast<std::int64_t>(q), pieces[q], keys, pairs, first});
      first = false;
    };
    const auto is_own = [&](Piece part) {
      return part.begin >= pieces[q].begin && part.end <= pieces[q].end;
    };
    for (const Piece& part : parts[static_cast<std::size_t>(rank)]) {
      if (is_own(part)) add(part);
    }
    for (const Piece& part : parts[static_cast<std::size_t>(rank)]) {
      if (is_own(part)) continue;
      for (const Piece& keys : intervals_read(problem_, lists, pieces[q], part)) add(keys);
    }
  }
}

void RingSchedule::add_step(const AttentionForward& lists, const std::vector<std::vector<Piece>>& parts,
                            std::int64_t step) {
  const std::int64_t first_slot = slots_;
  for (int reader = 0; reader < ranks(); ++reader) {
    const int owner = static_cast<int>((reader + ranks() - step) % ranks());
    const std::vector<Piece>& queries = partition_.pieces[static_cast<std::size_t>(reader)];
    std::int64_t slot = first_slot;
    for (const Piece& keys : parts[static_cast<std::size_t>(owner)]) {
      std::vector<ChunkPair> pairs;
      std::vector<Piece> read;
      for (std::size_t q = 0; q < queries.size(); ++q) {
        for (const Piece& interval : intervals_read(problem_, lists, queries[q], keys)) {
          const std::int64_t count = count_pairs(problem_, lists, queries[q], interval);
          if (count == 0) continue;
          pairs.push_back({static_cast<std::int64_t>(q), queries[q], interval, count, false});
          read.push_back(interval);
        }
      }
      for (const Piece& interval : joined(std::move(read))) {
        Transfer transfer;
        transfer.slot = slot++;
        transfer.step = step;
        transfer.owner = owner;
        transfer.reader = reader;
        transfer.keys = interval;
        for (const ChunkPair& pair : pairs) {
          if (interval.begin <= pair.keys.begin && pair.keys.end <= interval.end)
            transfer.pairs.push_back(pair);
        }
        if (problem_.mask.dilation_count > 0) {
          for (std::int64_t b = 0; b < problem_.batch; ++b) {
            for (std::int64_t kv = 0; kv < problem_.heads_kv; ++kv) {
              transfer.rows.push_back(dilated_rows_read(problem_, lists, b, kv, queries, interval));
            }
          }
          transfer.keys = hull(transfer.rows);
          for (ChunkPair& pair : transfer.pairs) pair.keys = transfer.keys;
          packs_ = true;
        }
        transfer.row_count = transfer.rows.empty() ? transfer.keys.size() * problem_.batch * problem_.heads_kv
                                                   : count_rows(transfer.rows);
        transfers_.push_back(std::move(transfer));
        slots_ = std::max(slots_, slot);
      }
    }
  }
}

void RingSchedule::index_transfers() {
  std::ranges::stable_sort(
      transfers_, {}, [](const Transfer& transfer) { return std::pair(transfer.slot, transfer.reader); });
  received_.assign(static_cast<std::size_t>(slots_ * ranks()), -1);
  sent_ = received_;
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    const Transfer& transfer = transfers_[i];
    received_[index(transfer.reader, transfer.slot)] = static_cast<std::int32_t>(i);
    sent_[index(transfer.owner, transfer.slot)] = static_cast<std::int32_t>(i);
    most_keys_ = std::max(most_keys_, transfer.keys.size());
    most_rows_ = std::max(most_rows_, transfer.row_count);
  }
}

const Transfer* RingSchedule::received(int rank, std::int64_t slot) const {
  const std::int32_t found = received_[index(rank, slot)];
  return found < 0 ? nullptr : &transfers_[static_cast<std::size_t>(found)];
}

const Transfer* RingSchedule::sent(int rank, std::int64_t slot) const {
  const std::int32_t found = sent_[index(rank, slot)];
  return found < 0 ? nullptr : &transfers_[static_cast<std::size_t>(found)];
}

std::int64_t RingSchedule::pairs(int rank) const {
  std::int64_t sum = 0;
  for (const ChunkPair& pair : local(rank)) sum = checked_add(sum, pair.pairs);
  for (const Transfer& transfer : transfers_) {
    if (transfer.reader != rank) continue;
    for (const ChunkPair& pair : transfer.pairs) sum = checked_add(sum, pair.pairs);
  }
  return sum;
}

std::int64_t RingSchedule::sent_bytes(int rank, Pass pass) const {
  std::int64_t bytes = 0;
  for (const Transfer& transfer : transfers_) {
    const std::int64_t elements = checked_multiply(2 * transfer.row_count, problem_.head_dim);
    if (transfer.owner == rank) bytes += elements * size_bytes(problem_.dtype);
    if (transfer.reader == rank && pass == Pass::backward)
      bytes += elements * size_bytes(problem_.dtype_of_sums());
  }
  return bytes;
}

}  // namespace headroom
