#include "headroom/parallel/partition.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>

#include "headroom/core/checked.h"
#include "headroom/core/text.h"
#include "parallel/rows_read.h"

namespace headroom {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"contiguous", "zigzag", "balanced"};

// Every piece of a problem with block lists begins with a block, so that its lists are lists of the chunk.
std::int64_t grain_of(const Mask& mask) {
  return mask.block_rows == 0 ? 1 : std::lcm(mask.block_rows, mask.block_columns);
}

// The sequence in `count` pieces that differ by a grain at most; the last may end within one.
std::vector<Piece> cut(std::int64_t tokens, std::int64_t count, std::int64_t grain) {
  const std::int64_t grains = divide_up(tokens, grain);
  std::vector<Piece> pieces;
  for (std::int64_t i = 0; i < count; ++i) {
    // grains * i / count without a product that could leave 64 bits
    const auto bound = [&](std::int64_t n) {
      return std::min(tokens, grain * (grains / count * n + grains % count * n / count));
    };
    pieces.push_back({bound(i), bound(i + 1)});
  }
  return pieces;
}

void add_piece(std::vector<Piece>& pieces, Piece piece) {
  if (piece.empty()) return;
  if (!pieces.empty() && pieces.back().end == piece.begin) {
    pieces.back().end = piece.end;
  } else {
    pieces.push_back(piece);
  }
}

// The largest work of a rank over the mean.
double imbalance(const std::vector<std::int64_t>& work) {
  const double sum = std::accumulate(work.begin(), work.end(), 0.0);
  if (sum == 0) return 0;
  const double mean = sum / static_cast<double>(work.size());
  const auto [least, most] = std::ranges::minmax(work);
  return std::max(static_cast<double>(most) / mean - 1, 1 - static_cast<double>(least) / mean);
}

struct Dealt {
  std::vector<int> owner;  // [piece]
  double imbalance = 0;
};

// Deals pieces out in rounds, those with most work first: in each round every rank gets one, the rank with
// least work so far the largest. So every rank has as many pieces as the others, and close to their work.
Dealt deal(const std::vector<std::int64_t>& work, int ranks) {
  std::vector<int> heaviest(work.size());
  std::iota(heaviest.begin(), heaviest.end(), 0);
  std::ranges::stable_sort(heaviest, std::greater{},
                           [&](int i) { return work[static_cast<std::size_t>(i)]; });
  std::vector<std::int64_t> load(static_cast<std::size_t>(ranks));
  std::vector<int> lightest(load.size());
  std::iota(lightest.begin(), lightest.end(), 0);
  Dealt dealt{.owner = std::vector<int>(work.size())};
  for (std::size_t i = 0; i < work.size(); ++i) {
    const std::size_t turn = i % load.size();
    if (turn == 0) {
      std::ranges::stable_sort(lightest, {}, [&](int rank) { return load[static_cast<std::size_t>(rank)]; });
    }
    const auto piece = static_cast<std::size_t>(heaviest[i]);
    dealt.owner[piece] = lightest[turn];
    load[static_cast<std::size_t>(lightest[turn])] += work[piece];
  }
  dealt.imbalance = imbalance(load);
  return dealt;
}

// The fewest pieces per rank that balance the work: few pieces have few borders, and what crosses none is not
// sent. Where no number of pieces does, the best one.
std::vector<std::vector<Piece>> balanced_pieces(int ranks, const AttentionProblem& whole,
                                                const AttentionForward& lists) {
  constexpr double kTolerance = 0.08;  // 10 % with room for tokens that do not divide
  constexpr std::int64_t kMostPiecesPerRank = 64;
  std::vector<std::vector<Piece>> best(static_cast<std::size_t>(ranks));
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t each = 1; each <= kMostPiecesPerRank && least > kTolerance; each *= 2) {
    const std::vector<Piece> pieces = cut(whole.seq_k, each * ranks, grain_of(whole.mask));
    if (each > 1 && each * ranks > whole.seq_k) break;
    std::vector<std::int64_t> work;
    for (const Piece& piece : pieces) work.push_back(count_pairs(whole, lists, piece, {0, whole.seq_k}));
    const Dealt dealt = deal(work, ranks);
    if (dealt.imbalance >= least) continue;
    least = dealt.imbalance;
    best.assign(best.size(), {});
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      add_piece(best[static_cast<std::size_t>(dealt.owner[i])], pieces[i]);
    }
  }
  return best;
}

}  // namespace

std::string_view name(PartitionKind kind) {
  return kNames[static_cast<std::size_t>(kind)];
}

PartitionKind parse_partition(std::string_view text) {
  const auto found = std::ranges::find(kNames, text);
  check(found != kNames.end(), "partition {} is unknown; use contiguous, zigzag or balanced", quote(text));
  return static_cast<PartitionKind>(found - kNames.begin());
}

std::int64_t Partition::tokens(int rank) const {
  std::int64_t sum = 0;
  for (const Piece& piece : pieces[static_cast<std::size_t>(rank)]) sum += piece.size();
  return sum;
}

std::int64_t Partition::most_tokens() const {
  std::int64_t most = 0;
  for (int rank = 0; rank < ranks(); ++rank) most = std::max(most, tokens(rank));
  return most;
}

Partition make_partition(PartitionKind kind, int ranks, const AttentionProblem& whole,
                         const AttentionForward& lists) {
  check(ranks > 0, "a sequence cannot be cut for {} ranks", ranks);
  Partition partition{.kind = kind,
                      .pieces = std::vector<std::vector<Piece>>(static_cast<std::size_t>(ranks))};
  if (kind == PartitionKind::balanced) {
    partition.pieces = balanced_pieces(ranks, whole, lists);
    return partition;
  }
  const bool folds = kind == PartitionKind::zigzag;
  const std::vector<Piece> pieces = cut(whole.seq_k, folds ? 2 * ranks : ranks, grain_of(whole.mask));
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto last = static_cast<std::size_t>(2 * ranks - 1);
    add_piece(partition.pieces[i < partition.pieces.size() ? i : last - i], pieces[i]);
  }
  return partition;
}

Partition partition_of_groups(const Partition& ranks, int group) {
  Partition groups{
      .kind = ranks.kind,
      .pieces = std::vector<std::vector<Piece>>(ranks.pieces.size() / static_cast<std::size_t>(group))};
  for (int rank = 0; rank < ranks.ranks(); ++rank) {
    const std::vector<Piece>& from = ranks.pieces[static_cast<std::size_t>(rank)];
    std::vector<Piece>& to = groups.pieces[static_cast<std::size_t>(rank / group)];
    to.insert(to.end(), from.begin(), from.end());
  }
  for (std::vector<Piece>& pieces : groups.pieces) pieces = joined(std::move(pieces));
  return groups;
}

std::int64_t count_pairs(const AttentionProblem& whole, const AttentionForward& lists, Piece queries,
                         Piece keys) {
  if (queries.empty() || keys.empty()) return 0;
  const Mask& mask = whole.mask;
  if (mask.max_documents == 0 && mask.block_rows == 0) {
    AttentionProblem chunk = whole;
    chunk.seq_q = queries.size();
    chunk.seq_k = keys.size();
    chunk.chunk = {.query_start = queries.begin, .key_start = keys.begin};
    if (mask.dilation_count == 0) {
      return checked_multiply(visible_pairs(chunk), whole.batch * whole.heads_q);
    }
    return checked_multiply(static_cast<std::int64_t>(pairs_of_all_heads(chunk)), whole.batch);
  }
  // Heads with the same mask are counted once: all of them, those of a K/V group, or none.
  const std::int64_t same = mask.dilation_count > 0 ? 1
                            : mask.block_rows > 0   ? whole.heads_q / whole.heads_kv
                                                    : whole.heads_q;
  std::int64_t pairs = 0;
  for (std::int64_t b = 0; b < whole.batch; ++b) {
    for (std::int64_t h = 0; h < whole.heads_q; h += same) {
      for (int pattern = 0; pattern < mask.patterns_per_head(); ++pattern) {
        const MaskView view = mask_view(whole, lists, b, h, pattern);
        pairs = checked_add(pairs, checked_multiply(view.pairs(queries.begin, queries.end, keys), same));
      }
    }
  }
  return pairs;
}

}  // namespace headroom
