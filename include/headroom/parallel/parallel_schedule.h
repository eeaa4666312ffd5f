// Attention over ranks in one of the ways. Each rank has the tokens of its pieces before and after, so that
// one way can take the place of another.
//
// Ranks in a row are a group, and the groups divide the sequence. The ranks of a group divide the heads: an
// all-to-all gives each of them all tokens of the group and some heads. Ranks with the same heads, one of
// every group, are a ring, which exchanges K and V. With groups of one rank that is one ring of all ranks,
// with one group it is heads alone (Ulysses), and between them it is the product of the two.
#pragma once

#include <optional>
#include <string>

#include "headroom/parallel/ring_schedule.h"

namespace headroom {

enum class AttentionWay : std::uint8_t {
  ring,     // groups of one rank
  heads,    // one group
  product,  // groups of more than one rank, more than one of them
  gather,   // every rank gathers the whole sequence and computes all of it: to compare with
};
// Returns ring, heads, allgather, or product:2 with groups of two ranks.
[[nodiscard]] std::string name(AttentionWay way, int group);

// Returns the way in which groups of so many of the ranks divide heads.
[[nodiscard]] AttentionWay way_of(int group, int ranks);

// Whether a way can divide a sequence as the partition has it. `group` is the number of ranks in a group; it
// is read with the product alone.
[[nodiscard]] Support supports_way(AttentionWay way, const AttentionProblem& whole,
                                   const Partition& partition, int group = 0);

class ParallelSchedule {
 public:
  // Throws where supports_way says no. The lists are those of a RingSchedule. With `sampled_rank`, the ring
  // is a sample for a rehearsal of that rank; see RingSchedule.
  ParallelSchedule(AttentionWay way, const AttentionProblem& whole, const AttentionForward& lists,
                   Partition partition, int group = 0, std::optional<int> sampled_rank = {});

  [[nodiscard]] AttentionWay way() const { return way_; }
  [[nodiscard]] const AttentionProblem& problem() const { return problem_; }
  [[nodiscard]] const Partition& partition() const { return partition_; }
  [[nodiscard]] int ranks() const { return partition_.ranks(); }
  // Ranks in a group. Rank r is number r % group of group r / group.
  [[nodiscard]] int group() const { return group_; }
  // The ring of the groups, with the heads of one rank. Of the way that gathers, it has one member and the
  // whole sequence.
  [[nodiscard]] const RingSchedule& ring() const { return ring_; }

  // (query, key) pairs that a rank computes.
  [[nodiscard]] std::int64_t pairs(int rank) const;
  // Bytes that a rank sends in a pass. A gradient of lse adds its own where heads are divided.
  [[nodiscard]] std::int64_t sent_bytes(int rank, Pass pass) const;

 private:
  AttentionWay way_;
  AttentionProblem problem_;
  Partition partition_;
  int group_;
  RingSchedule ring_;
};

}  // namespace headroom
