// What one rank of a ring reads of another: the part of the schedule that two ranks decide. Whoever needs
// every pair of a thousand ranks calls this a million times, so masks of one interval take no memory, and
// what a rank reads under a dilated mask is found once for all ranks that lie alike in its pattern.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "headroom/parallel/ring_schedule.h"

namespace headroom {

// K/V heads of which the same rows are read.
struct HeadsAlike {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::vector<std::int64_t> rates;  // of each pattern and offset that a query head has
};

class RingReads {
 public:
  // All three have to outlive this.
  RingReads(const AttentionProblem& whole, const AttentionForward& lists, const Partition& partition);

  // The problem with the mask that the schedule is made for; see RingSchedule.
  [[nodiscard]] const AttentionProblem& problem() const { return problem_; }
  // The pieces of a rank, in parts as long as transfers may be.
  [[nodiscard]] std::span<const Piece> parts(int owner) const {
    const std::size_t* begin = &parts_begin_[static_cast<std::size_t>(owner)];
    return std::span(parts_).subspan(begin[0], begin[1] - begin[0]);
  }

  // The keys of one transfer, and what their reader computes with them.
  struct Read {
    Piece keys;
    std::size_t first_pair = 0;
    std::size_t pair_count = 0;
    Piece sent;                  // from the first row that is sent to the last: `keys`, but for dilation
    std::int64_t row_count = 0;  // rows sent, of all sequences and K/V heads
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

  // Slots that the transfers of all ranks need at most.
  [[nodiscard]] std::int64_t most_slots() const;

  // A pair as it runs: with dilation its keys are those from the first row that is sent to the last.
  [[nodiscard]] ChunkPair as_sent(ChunkPair pair, const Read& read) const {
    if (problem_.mask.dilation_count > 0) pair.keys = read.sent;
    return pair;
  }
  // Equal for transfers whose readers take the same memory.
  [[nodiscard]] std::uint64_t shape(const Read& read) const;
  // body(read, reader, owner, step) for a sample of the transfers of one rank, by step: one of each shape
  // that it receives, and the first that it sends.
  template <class Body>
  void for_each_sampled(int rank, const Body& body);

  // Of the largest transfer between any two ranks.
  struct Largest {
    std::int64_t keys = 0;
    std::int64_t rows = 0;

    [[nodiscard]] bool covers(const Largest& other) const { return keys >= other.keys && rows >= other.rows; }
    void take(std::int64_t more_keys, std::int64_t more_rows) {
      keys = std::max(keys, more_keys);
      rows = std::max(rows, more_rows);
    }
  };
  [[nodiscard]] Largest largest();

 private:
  // The keys that the first and the last query of a piece see; of other masks, those that some query does see
  // lie between.
  struct Seen {
    KeyRange first;
    KeyRange last;
  };
  // Queries of a rank, or those on both sides of a part.
  struct Queries {
    std::span<const Piece> pieces;
    std::vector<Seen> seen;  // [piece]
  };
  // The pieces have to outlive what is returned.
  [[nodiscard]] Queries queries_of(std::span<const Piece> pieces) const;
  [[nodiscard]] const Queries& queries_of(int rank);
  [[nodiscard]] static Piece seen_of(const Seen& seen, Piece keys);
  // Adds what the queries read of one part.
  void read_part(const Queries& queries, Piece part);
  void find_reads(const Queries& queries, Piece part);
  void add_pairs(const Queries& queries, std::size_t query_piece, Piece keys);
  [[nodiscard]] Largest most_read(const Queries& queries, Piece part);
  // An upper bound of what a rank reads of a part, wherever the part lies in the segments of a mask.
  [[nodiscard]] Largest most_of_part(Piece part) const;
  // Sets what of `read.keys` is sent under a dilated mask.
  void count_dilated_rows(std::span<const Piece> queries, Read& read) const;
  // Writes into key_ where the queries and the part lie in the segments of a dilated mask. What is read is a
  // function of it, but for the position of the part. Returns false where nothing is seen.
  bool describe(const Queries& queries, Piece part);

  AttentionProblem problem_;
  const AttentionForward& lists_;
  const Partition& partition_;
  std::vector<Piece> parts_;              // of one owner after the other
  std::vector<std::size_t> parts_begin_;  // [owners + 1]
  bool one_interval_;                     // whatever the head and the sequence: causal and window alone
  // Of a dilated mask without documents.
  std::vector<MaskView> patterns_;
  std::vector<HeadsAlike> heads_alike_;
  std::vector<Queries> queries_;  // [rank]; empty until the rank is asked for
  std::vector<Read> reads_;
  std::vector<ChunkPair> pairs_;
  std::vector<ChunkPair> found_;
  std::vector<Piece> intervals_;

  // What was read of a part, at position 0.
  struct Known {
    std::vector<Read> reads;
    std::vector<ChunkPair> pairs;
  };
  using Key = std::vector<std::int64_t>;
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  std::unordered_map<Key, Known, KeyHash> known_;
  Key key_;
};

// A number that is equal for pairs of chunks that take the same memory.
[[nodiscard]] std::uint64_t shape_of(std::span<const ChunkPair> pairs);

template <class Body>
void RingReads::for_each_sampled(int rank, const Body& body) {
  const int ranks = partition_.ranks();
  std::vector<std::uint64_t> seen;
  bool sends = false;
  for (int step = 1; step < ranks; ++step) {
    const int owner = (rank + ranks - step) % ranks;
    for (const Read& read : between(rank, owner)) {
      const std::uint64_t of_read = shape(read);
      if (std::ranges::find(seen, of_read) != seen.end()) continue;
      seen.push_back(of_read);
      body(read, rank, owner, step);
    }
    if (sends) continue;
    const int reader = (rank + step) % ranks;
    const std::span<const Read> sent = between(reader, rank);
    sends = !sent.empty();
    if (sends) body(sent.front(), reader, rank, step);
  }
}

}  // namespace headroom
