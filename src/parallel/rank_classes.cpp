#include "headroom/parallel/rank_classes.h"

#include <algorithm>
#include <functional>
#include <map>

#include "headroom/parallel/ring_attention.h"
#include "parallel/ring_reads.h"

namespace headroom {
namespace {

// The part of the keys that the pairs of a member of the ring decide.
RankMemory pairs_of(RingReads& reads, const AttentionProblem& of_ring, std::int64_t most_tokens, int member,
                    const DeviceDescription& device) {
  RankMemory memory{.key = {}, .rehearsal = {}, .workspace_bytes = {0, 0}};
  const auto consider = [&](const ChunkPair& pair) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      std::int64_t& most = memory.workspace_bytes[pass == Pass::forward ? 0 : 1];
      most = std::max(most, attention_workspace_bytes(
                                problem_of_pair(of_ring, most_tokens, pair, pass, device), device, pass));
    }
  };
  const std::vector<ChunkPair> local = reads.local(member);
  for (const ChunkPair& pair : local) consider(pair);
  memory.rehearsal.push_back(local.size());
  reads.for_each_sampled(member, [&](const RingReads::Read& read, int reader, int, std::int64_t) {
    memory.rehearsal.push_back(reader == member ? read.pair_count : 0);  // or it is sent
    if (reader != member) return;
    memory.key.push_back(reads.shape(read));
    for (const ChunkPair& pair : reads.pairs(read)) consider(reads.as_sent(pair, read));
  });
  std::ranges::sort(memory.key);
  memory.key.push_back(shape_of(local));
  return memory;
}

// Whether no block of a rank is larger than the same block of another, of two with equal rehearsals.
bool holds_no_more(const RankMemory& rank, const RankMemory& other) {
  return std::ranges::equal(rank.workspace_bytes, other.workspace_bytes, std::less_equal());
}

}  // namespace

void RankMemory::append(const RankMemory& more) {
  key.insert(key.end(), more.key.begin(), more.key.end());
  rehearsal.insert(rehearsal.end(), more.rehearsal.begin(), more.rehearsal.end());
  workspace_bytes.insert(workspace_bytes.end(), more.workspace_bytes.begin(), more.workspace_bytes.end());
}

std::vector<RankMemory> rank_memory(const AttentionProblem& whole, const Partition& partition, int group,
                                    const DeviceDescription& device) {
  AttentionProblem problem = whole;
  problem.heads_q /= group;
  problem.heads_kv /= group;
  const Partition groups = partition_of_groups(partition, group);
  const AttentionForward no_lists;
  RingReads reads(problem, no_lists, groups);
  const std::int64_t most_tokens = groups.most_tokens();
  std::vector<RankMemory> memory;
  for (int member = 0; member < groups.ranks(); ++member) {
    const RankMemory pairs = pairs_of(reads, problem, most_tokens, member, device);
    for (int rank = member * group; rank < (member + 1) * group; ++rank) {
      RankMemoryKey sizes;
      const auto add_sizes = [&](int of) {
        for (const Piece& piece : partition.pieces[static_cast<std::size_t>(of)]) {
          sizes.push_back(static_cast<std::uint64_t>(piece.size()));
        }
        sizes.push_back(~std::uint64_t{0});  // between one rank's sizes and the next one's
      };
      add_sizes(rank);
      for (int other = member * group; other < (member + 1) * group; ++other) add_sizes(other);
      memory.push_back({sizes, sizes, {}});
      memory.back().append(pairs);
    }
  }
  return memory;
}

RankClasses rank_classes(const std::vector<RankMemory>& ranks) {
  RankClasses found;
  std::map<RankMemoryKey, std::int32_t> known;
  std::map<RankMemoryKey, std::vector<std::int32_t>> alike;  // classes, by rehearsal
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto index = static_cast<std::int32_t>(found.classes.size());
    const auto [place, is_new] = known.emplace(ranks[rank].key, index);
    if (is_new) {
      found.classes.push_back({.first = static_cast<int>(rank), .rehearsed = index});
      alike[ranks[rank].rehearsal].push_back(index);
    }
    ++found.classes[static_cast<std::size_t>(place->second)].count;
    found.of_rank.push_back(place->second);
  }
  const auto memory = [&](std::int32_t of) -> const RankMemory& {
    return ranks[static_cast<std::size_t>(found.classes[static_cast<std::size_t>(of)].first)];
  };
  for (const auto& [rehearsal, classes] : alike) {
    for (const std::int32_t one : classes) {
      RankClass& like = found.classes[static_cast<std::size_t>(one)];
      for (const std::int32_t other : classes) {
        if (one == other || !holds_no_more(memory(one), memory(other))) continue;
        const bool equal = memory(one).workspace_bytes == memory(other).workspace_bytes;
        like.outweighed |= !equal || other < one;
        if (equal) like.rehearsed = std::min(like.rehearsed, other);
      }
    }
  }
  return found;
}

}  // namespace headroom
