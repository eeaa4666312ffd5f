// The schedule of a ring: a pure function of ranks, partition, mask and lists. It is what runs, what a
// rehearsal records, what is charged and what is drawn. A rank here is a member of the ring.
//
// Q stays where it is. In step s, rank r reads keys of rank r - s, modulo the number of ranks: exactly the
// rows that one of its queries sees, in transfers of at most half the largest chunk. A transfer that nobody
// reads is neither sent nor computed. In backward the same transfers are read again, and what a transfer's
// reader adds to dK and dV goes straight back to its owner, in f32.
#pragma once

#include "headroom/parallel/partition.h"

namespace headroom {

// Queries of one piece with keys of one interval: an ordinary attention problem with a chunk.
struct ChunkPair {
  std::int64_t query_piece = 0;  // of the reader's pieces
  Piece queries;
  Piece keys;
  std::int64_t pairs = 0;  // (query, key) pairs that attend, over all heads and sequences
  bool first = false;      // of its queries, whatever the mask leaves of it
};

// Positions begin, begin + stride, ... (count of them).
struct RowRun {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::int64_t stride = 1;

  bool operator==(const RowRun&) const = default;
};

struct Transfer {
  std::int64_t slot = 0;  // rank r handles slot 0 first, then 1, ...; the first step's slots come first
  std::int64_t step = 0;
  int owner = 0;
  int reader = 0;
  Piece keys;                             // within one piece of the owner
  std::vector<std::vector<RowRun>> rows;  // [batch x heads_kv] what is sent; none: every row of `keys`
  std::int64_t row_count = 0;             // rows sent, each head_dim elements of K and of V
  std::vector<ChunkPair> pairs;           // what the reader computes with it
};

class RingSchedule {
 public:
  // Throws where ring_supports says no. The lists of the whole sequence are in host memory. Where the problem
  // has documents and `lists` has no starts of them, the schedule is good for any batch: it sends what one
  // document would need, and the kernels leave out what is in another document.
  RingSchedule(const AttentionProblem& whole, const AttentionForward& lists, Partition partition);
  // A sample of that schedule: the part of one rank, with one transfer of each shape that it receives and one
  // that it sends. Buffers are taken for the largest transfer and workspaces for the largest pair, so a
  // rehearsal of the sample takes the bytes of the whole schedule, and is as short for a thousand ranks as
  // for eight. Its work and its messages are not those of a run.
  RingSchedule(const AttentionProblem& whole, const AttentionForward& lists, Partition partition,
               int sampled_rank);

  [[nodiscard]] const AttentionProblem& problem() const { return problem_; }
  [[nodiscard]] const Partition& partition() const { return partition_; }
  // Of the rank that holds most.
  [[nodiscard]] std::int64_t most_tokens() const { return most_tokens_; }
  [[nodiscard]] int ranks() const { return partition_.ranks(); }
  // By slot, then by reader.
  [[nodiscard]] std::span<const Transfer> transfers() const { return transfers_; }
  [[nodiscard]] std::int64_t slots() const { return slots_; }
  // What a rank receives or sends in a slot; null: nothing.
  [[nodiscard]] const Transfer* received(int rank, std::int64_t slot) const;
  [[nodiscard]] const Transfer* sent(int rank, std::int64_t slot) const;
  // A rank's queries with its own keys, in parts as long as transfers at most; of a ring of one member the
  // whole sequence at once.
  [[nodiscard]] std::span<const ChunkPair> local(int rank) const {
    return local_[static_cast<std::size_t>(rank)];
  }

  // (query, key) pairs that a rank computes.
  [[nodiscard]] std::int64_t pairs(int rank) const;
  // Bytes of K and V that a rank sends in a pass, and in backward also of the gradients of what it read.
  [[nodiscard]] std::int64_t sent_bytes(int rank, Pass pass) const;
  // Rows of the largest transfer's interval, and the most rows that one transfer sends, over all ranks.
  [[nodiscard]] std::int64_t most_keys() const { return most_keys_; }
  [[nodiscard]] std::int64_t most_rows() const { return most_rows_; }
  // No fewer than slots(), and the same of a sample: as many buffers are enough.
  [[nodiscard]] std::int64_t most_slots() const { return most_slots_; }
  // Whether only some rows of an interval are sent, so that they are packed and unpacked.
  [[nodiscard]] bool packs() const { return packs_; }

 private:
  void add(Transfer transfer, std::int64_t slot, std::int64_t step);
  void index_transfers();
  [[nodiscard]] std::size_t index(int rank, std::int64_t slot) const {
    return static_cast<std::size_t>(slot * ranks() + rank);
  }

  AttentionProblem problem_;
  Partition partition_;
  std::vector<Transfer> transfers_;
  std::vector<std::vector<ChunkPair>> local_;  // [rank]
  std::vector<std::int32_t> received_, sent_;  // [slot, rank] into transfers_, or -1
  std::int64_t slots_ = 0;
  std::int64_t most_tokens_ = 0;
  std::int64_t most_slots_ = 0;
  std::int64_t most_keys_ = 0;
  std::int64_t most_rows_ = 0;
  bool packs_ = false;
};

// Whether attention over a whole sequence can be divided over ranks that exchange K and V.
[[nodiscard]] Support ring_supports(const AttentionProblem& whole);

}  // namespace headroom
