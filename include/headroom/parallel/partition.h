// Which positions of a sequence each rank holds. A rank holds pieces: intervals of positions, rising. Its
// tensors have the rows of its pieces one after the other, so [batch, tokens of the rank, heads, head_dim].
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "headroom/attention.h"

namespace headroom {

using Piece = Interval<std::int64_t>;  // of positions

enum class PartitionKind : std::uint8_t {
  contiguous,  // one piece per rank
  zigzag,      // of 2 x ranks pieces, rank r holds piece r and the r-th from the end: causal work is equal
  balanced,    // as many pieces per rank as it takes to bring work and tokens within 10 % of their mean
};
[[nodiscard]] std::string_view name(PartitionKind kind);
// Accepts contiguous, zigzag and balanced; throws otherwise.
[[nodiscard]] PartitionKind parse_partition(std::string_view text);

struct Partition {
  PartitionKind kind = PartitionKind::contiguous;
  std::vector<std::vector<Piece>> pieces;  // [rank]; together they are the sequence, no position twice

  [[nodiscard]] int ranks() const { return static_cast<int>(pieces.size()); }
  [[nodiscard]] std::int64_t tokens(int rank) const;
  // Of the rank that holds most.
  [[nodiscard]] std::int64_t most_tokens() const;

  bool operator==(const Partition&) const = default;
};

// Cuts a whole sequence for so many ranks. Lengths need not be divisible: pieces differ by a token, and ranks
// hold nothing where there are too few tokens. With block lists, pieces begin at multiples of both sides of a
// block. `lists` holds the document starts and block lists of the whole sequence, in host memory; only
// `balanced` reads them.
[[nodiscard]] Partition make_partition(PartitionKind kind, int ranks, const AttentionProblem& whole,
                                       const AttentionForward& lists);

// What groups of so many ranks in a row hold: the pieces of their ranks, joined where they touch.
[[nodiscard]] Partition partition_of_groups(const Partition& ranks, int group);

// (query, key) pairs of all heads and sequences that attend, queries in one piece and keys in another.
[[nodiscard]] std::int64_t count_pairs(const AttentionProblem& whole, const AttentionForward& lists,
                                       Piece queries, Piece keys);

}  // namespace headroom
