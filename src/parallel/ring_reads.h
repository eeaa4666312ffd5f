// What one rank of a ring reads of another: the part of the schedule that two ranks decide. Whoever needs
// every pair of a thousand ranks calls this a million times, so masks of one interval take no memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "headroom/parallel/ring_schedule.h"

namespace headroom {

class RingReads {
 public:
  // The problem and the partition have to outlive this.
  RingReads(const AttentionProblem& whole, const AttentionForward& lists, const Partition& partition);

  // The problem with the mask that the schedule is made for; see RingSchedule.
  [[nodiscard]] const AttentionProblem& problem() const { return problem_; }
  // The pieces of a rank, in parts as long as transfers may be.
  [[nodiscard]] const std::vector<Piece>& parts(int owner) const {
    return parts_[static_cast<std::size_t>(owner)];
  }

  // The keys of one transfer, and what their reader computes with them.
  struct Read {
    Piece keys;
    std::size_t first_pair = 0;
    std::size_t pair_count = 0;
  };
  // What `reader` reads of `owner`, one transfer after the other, until the next call.
  std::span<const Read> between(int reader, int owner);
  [[nodiscard]] std::span<const ChunkPair> pairs(const Read& read) const {
    return std::span(pairs_).subspan(read.first_pair, read.pair_count);
  }
  // A rank's queries with its own keys.
  [[nodiscard]] std::vector<ChunkPair> local(int rank) const;
  // Slot and step are left at 0.
  [[nodiscard]] Transfer transfer(const Read& read, int reader, int owner) const;
  // Rows that the transfer sends, of all sequences and K/V heads.
  [[nodiscard]] std::int64_t row_count(const Read& read, int reader, int owner) const;

  // Slots that the transfers of all ranks need at most.
  [[nodiscard]] std::int64_t most_slots() const;

  // Equal for transfers whose readers take the same memory.
  [[nodiscard]] std::uint64_t shape(const Read& read, int reader, int owner) const;

  // Of the largest transfer between any two ranks.
  struct Largest {
    std::int64_t keys = 0;
    std::int64_t rows = 0;
  };
  [[nodiscard]] Largest largest();

 private:
  // Adds what the reader reads of one part.
  void read_part(int reader, Piece part);
  void add_pairs(int reader, std::size_t query_piece, Piece keys);

  AttentionProblem problem_;
  const AttentionForward& lists_;
  const Partition& partition_;
  std::vector<std::vector<Piece>> parts_;  // [owner]
  bool one_interval_;                      // whatever the head and the sequence: causal and window alone
  // The keys that the first and the last query of a piece see; of other masks, those that some query does see
  // lie between.
  struct Seen {
    KeyRange first;
    KeyRange last;
  };
  std::vector<std::vector<Seen>> seen_;  // [rank][piece]
  std::vector<Read> reads_;
  std::vector<ChunkPair> pairs_;
  std::vector<ChunkPair> found_;
  std::vector<Piece> intervals_;
};

// A number that is equal for pairs of chunks that take the same memory.
[[nodiscard]] std::uint64_t shape_of(std::span<const ChunkPair> pairs);

}  // namespace headroom
