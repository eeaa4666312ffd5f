#include "headroom/parallel/rank_classes.h"

#include <algorithm>
#include <map>

#include "parallel/ring_reads.h"

namespace headroom {
namespace {

void add_once(RankMemoryKey& key, std::uint64_t shape) {
  if (std::ranges::find(key, shape) == key.end()) key.push_back(shape);
}

// The shapes of the pairs that a member of the ring computes, each once.
RankMemoryKey shapes_of(RingReads& reads, int member, int members) {
  RankMemoryKey shapes;
  for (int owner = 0; owner < members; ++owner) {
    if (owner == member) continue;
    for (const RingReads::Read& read : reads.between(member, owner)) {
      add_once(shapes, reads.shape(read, member, owner));
    }
  }
  std::ranges::sort(shapes);
  shapes.push_back(shape_of(reads.local(member)));
  return shapes;
}

}  // namespace

std::vector<RankMemoryKey> rank_memory_keys(const AttentionProblem& whole, const Partition& partition,
                                            int group) {
  AttentionProblem problem = whole;
  problem.heads_q /= group;
  problem.heads_kv /= group;
  const Partition groups = partition_of_groups(partition, group);
  RingReads reads(problem, {}, groups);
  std::vector<RankMemoryKey> keys;
  for (int member = 0; member < groups.ranks(); ++member) {
    const RankMemoryKey shapes = shapes_of(reads, member, groups.ranks());
    for (int rank = member * group; rank < (member + 1) * group; ++rank) {
      RankMemoryKey& key = keys.emplace_back();
      const auto add_sizes = [&](int of) {
        for (const Piece& piece : partition.pieces[static_cast<std::size_t>(of)]) {
          key.push_back(static_cast<std::uint64_t>(piece.size()));
        }
        key.push_back(~std::uint64_t{0});  // between one rank's sizes and the next one's
      };
      add_sizes(rank);
      for (int other = member * group; other < (member + 1) * group; ++other) add_sizes(other);
      key.insert(key.end(), shapes.begin(), shapes.end());
    }
  }
  return keys;
}

RankClasses rank_classes(const std::vector<RankMemoryKey>& keys) {
  RankClasses found;
  std::map<RankMemoryKey, std::int32_t> known;
  for (std::size_t rank = 0; rank < keys.size(); ++rank) {
    const auto [place, is_new] = known.emplace(keys[rank], static_cast<std::int32_t>(found.classes.size()));
    if (is_new) found.classes.push_back({.first = static_cast<int>(rank)});
    ++found.classes[static_cast<std::size_t>(place->second)].count;
    found.of_rank.push_back(place->second);
  }
  return found;
}

}  // namespace headroom
