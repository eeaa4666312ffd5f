#include "headroom/parallel/ring_schedule.h"

#include <algorithm>

#include "headroom/core/checked.h"
#include "parallel/ring_reads.h"

namespace headroom {
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

namespace {

Partition checked_partition(const AttentionProblem& whole, Partition partition) {
  validate(whole);
  const Support support = ring_supports(whole);
  check(bool{support}, "a ring cannot run this attention: {}", support.reason());
  return partition;
}

}  // namespace

RingSchedule::RingSchedule(const AttentionProblem& whole, const AttentionForward& lists, Partition partition)
    : problem_(whole),
      partition_(checked_partition(whole, std::move(partition))),
      local_(partition_.pieces.size()),
      most_tokens_(partition_.most_tokens()) {
  RingReads reads(problem_, lists, partition_);
  for (int rank = 0; rank < ranks(); ++rank) local_[static_cast<std::size_t>(rank)] = reads.local(rank);
  for (std::int64_t step = 1; step < ranks(); ++step) {
    const std::int64_t first_slot = slots_;
    for (int reader = 0; reader < ranks(); ++reader) {
      const int owner = static_cast<int>((reader + ranks() - step) % ranks());
      std::int64_t slot = first_slot;
      for (const RingReads::Read& read : reads.between(reader, owner)) {
        add(reads.transfer(read, reader, owner), slot++, step);
      }
    }
  }
  index_transfers();
  most_slots_ = reads.most_slots();
  packs_ = reads.problem().mask.dilation_count > 0 && !transfers_.empty();
  for (const Transfer& transfer : transfers_) {
    most_keys_ = std::max(most_keys_, transfer.keys.size());
    most_rows_ = std::max(most_rows_, transfer.row_count);
  }
}

RingSchedule::RingSchedule(const AttentionProblem& whole, const AttentionForward& lists, Partition partition,
                           int sampled_rank)
    : problem_(whole),
      partition_(checked_partition(whole, std::move(partition))),
      local_(partition_.pieces.size()),
      most_tokens_(partition_.most_tokens()) {
  check(sampled_rank >= 0 && sampled_rank < ranks(), "there is no rank {} of {}", sampled_rank, ranks());
  RingReads reads(problem_, lists, partition_);
  local_[static_cast<std::size_t>(sampled_rank)] = reads.local(sampled_rank);
  const RingReads::Largest largest = reads.largest();
  most_slots_ = reads.most_slots();
  most_keys_ = largest.keys;
  most_rows_ = largest.rows;
  packs_ = reads.problem().mask.dilation_count > 0 && largest.keys > 0;

  reads.for_each_sampled(sampled_rank,
                         [&](const RingReads::Read& read, int reader, int owner, std::int64_t step) {
                           add(reads.transfer(read, reader, owner), slots_, step);
                         });
  index_transfers();
}

void RingSchedule::add(Transfer transfer, std::int64_t slot, std::int64_t step) {
  transfer.slot = slot;
  transfer.step = step;
  slots_ = std::max(slots_, slot + 1);
  transfers_.push_back(std::move(transfer));
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
