// Which ranks of a ring take the same memory: a schedule of a thousand ranks has a handful of kinds of them.
#pragma once

#include <cstdint>
#include <vector>

#include "headroom/parallel/partition.h"

namespace headroom {

// What decides the memory of attention on a rank: the sizes of its pieces, of the tokens of its group, and
// the shapes of all pairs of chunks that it computes. Two ranks with equal keys take the same bytes.
using RankMemoryKey = std::vector<std::uint64_t>;
struct RankMemory {
  RankMemoryKey key;
  // The sizes, and how many pairs each transfer of the sampled schedule has: equal for ranks whose rehearsals
  // have the same kernels in the same order, and blocks that differ in the workspaces of attention alone.
  RankMemoryKey rehearsal;
  std::vector<std::int64_t> workspace_bytes;  // [kind of attention x pass], on a device

  void append(const RankMemory& more);
};
// Returns the keys of all ranks, in groups of so many that divide heads. They are found in one pass over the
// schedule.
[[nodiscard]] std::vector<RankMemory> rank_memory(const AttentionProblem& whole, const Partition& partition,
                                                  int group, const DeviceDescription& device);

struct RankClass {
  int first = 0;  // its first rank, which stands for all of them
  std::int64_t count = 0;
  std::int32_t rehearsed = 0;  // the first class with the same rehearsal: this one, or one before it
  bool outweighed = false;     // another class has the same blocks, or larger ones in place of some
};
// The classes of ranks with equal keys, by their first rank.
struct RankClasses {
  std::vector<RankClass> classes;
  std::vector<std::int32_t> of_rank;  // [rank] into classes
};
[[nodiscard]] RankClasses rank_classes(const std::vector<RankMemory>& ranks);

}  // namespace headroom
