// How long attention over ranks takes: its schedule, played slot by slot. A pure function of the problem, the
// partition, the speed of a rank and its link; nothing runs. See docs/distributed.md for the rules.
#pragma once

#include "headroom/comm/link_model.h"
#include "headroom/parallel/partition.h"

namespace headroom {

// A pass over one pair of chunks takes start + operations / rate + bytes / rate. A byte rate of 0 leaves the
// bytes out.
struct PassRate {
  double flops_per_second = 0;
  double bytes_per_second = 0;
  double start_seconds = 0;
};
struct RankRates {
  PassRate forward;
  PassRate backward;
  double memory_bytes_per_second = 0;  // of kernels that clear, add and convert; 0 leaves them out
  LinkModel link;
};

struct PassTime {
  double seconds = 0;          // until the last rank has ended
  double compute_seconds = 0;  // of the rank that computes longest
  double mean_compute_seconds = 0;
  double waited_seconds = 0;     // for messages of the ring, on the rank that waits longest
  double exchanged_seconds = 0;  // the all-to-alls of heads, during which nothing is computed
  std::int64_t sent_bytes = 0;   // by the rank that sends most

  // The part of the time that messages add to computing.
  [[nodiscard]] double exposed_seconds() const { return seconds - compute_seconds; }
  // The share of the time in which ranks do not compute, over all of them.
  [[nodiscard]] double bubbles() const { return seconds > 0 ? 1 - mean_compute_seconds / seconds : 0; }
};
struct AttentionTime {
  PassTime forward;
  PassTime backward;

  [[nodiscard]] double seconds() const { return forward.seconds + backward.seconds; }
};

// Plays attention in groups of so many ranks that divide heads: 1 is a ring, all of them are heads alone. The
// group has to be one that supports_way accepts. The keys of the first slots leave at once: two in forward,
// three in backward, one with dilation. In each slot a rank waits for the keys of the slot, starts to send
// those of the slot so many later, and computes; messages leave a rank one after another and move while it
// computes. In backward the gradients of a slot's keys leave behind its computing, and their owner adds them
// when it needs their buffer again.
[[nodiscard]] AttentionTime play_attention(const AttentionProblem& whole, const AttentionForward& lists,
                                           const Partition& partition, int group, const RankRates& rates);

}  // namespace headroom
