#include "parallel/ring_reads.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>

#include "headroom/core/checked.h"
#include "parallel/rows_read.h"

namespace headroom {
namespace {

// No transfer is longer than half of the largest chunk: three transfers are in memory at a time, in backward
// four, and five of gradients.
std::int64_t longest_transfer(const Partition& partition, const Mask& mask) {
  const std::int64_t parts = partition.ranks() == 1 ? 1 : 2;  // one rank sends nothing
  const std::int64_t longest = std::max<std::int64_t>(divide_up(partition.most_tokens(), parts), 1);
  return mask.block_rows > 0 ? round_up(longest, mask.block_columns) : longest;
}

// Adds the piece, cut into parts that are no longer than that.
void add_parts(std::vector<Piece>& parts, Piece piece, std::int64_t longest) {
  const std::int64_t count = divide_up(piece.size(), longest);
  for (std::int64_t i = 0; i < count; ++i) {
    parts.push_back({piece.begin + i * longest, std::min(piece.begin + (i + 1) * longest, piece.end)});
  }
}

// K/V heads whose query heads have the same dilated patterns at the same offsets.
std::vector<HeadsAlike> find_heads_alike(const AttentionProblem& problem) {
  using Offsets = std::set<std::array<std::int64_t, 3>>;
  std::map<Offsets, std::size_t> known;
  std::vector<HeadsAlike> alike;
  const std::int64_t group = problem.heads_q / problem.heads_kv;
  for (std::int64_t kv = 0; kv < problem.heads_kv; ++kv) {
    Offsets offsets;
    for (std::int64_t head = kv * group; head < (kv + 1) * group; ++head) {
      for (int pattern = 0; pattern < problem.mask.patterns_per_head(); ++pattern) {
        const MaskView view = mask_view(problem, {}, 0, head, pattern);
        offsets.insert({view.dilation.segment, view.dilation.rate, view.dilation_offset});
      }
    }
    const auto [place, is_new] = known.try_emplace(std::move(offsets), alike.size());
    if (is_new) {
      alike.push_back({.first = kv, .rates = {}});
      for (const auto& [segment, rate, offset] : place->first) alike.back().rates.push_back(rate);
    }
    ++alike[place->second].count;
  }
  return alike;
}

constexpr std::uint64_t kHashStart = 14'695'981'039'346'656'037ULL;
void mix(std::uint64_t& hash, std::int64_t value) {
  hash ^= static_cast<std::uint64_t>(value);
  hash *= 0x9E37'79B9'7F4A'7C15ULL;
  hash ^= hash >> 29;
}
void mix_shape(std::uint64_t& hash, const ChunkPair& pair) {
  mix(hash, pair.query_piece);
  mix(hash, pair.queries.size());
  mix(hash, pair.keys.size());
  mix(hash, pair.first ? 1 : 0);
}

// The mask that a schedule is made for. Documents that are not listed may begin anywhere, and segments of a
// dilation begin with them: the mask without both is the one that lets through whatever a batch may need.
Mask scheduled_mask(Mask mask, const AttentionForward& lists) {
  if (mask.max_documents == 0 || lists.document_starts.elements() > 0) return mask;
  mask.max_documents = 0;
  mask.dilation_count = 0;
  return mask;
}

}  // namespace

RingReads::RingReads(const AttentionProblem& whole, const AttentionForward& lists, const Partition& partition)
    : problem_(whole), lists_(lists), partition_(partition) {
  problem_.mask = scheduled_mask(whole.mask, lists);
  const std::int64_t longest = longest_transfer(partition, whole.mask);
  for (const std::vector<Piece>& pieces : partition.pieces) {
    parts_begin_.push_back(parts_.size());
    for (const Piece& piece : pieces) add_parts(parts_, piece, longest);
  }
  parts_begin_.push_back(parts_.size());
  const Mask& mask = problem_.mask;
  one_interval_ = mask.max_documents == 0 && mask.dilation_count == 0 && mask.block_rows == 0;
  for (int i = 0; i < (mask.max_documents == 0 ? mask.dilation_count : 0); ++i) {
    patterns_.push_back({.dilation = mask.dilations[static_cast<std::size_t>(i)]});
  }
  if (!patterns_.empty()) heads_alike_ = find_heads_alike(problem_);
  queries_.resize(partition.pieces.size());
}

const RingReads::Queries& RingReads::queries_of(int rank) {
  const auto place = static_cast<std::size_t>(rank);
  if (queries_[place].pieces.empty()) queries_[place] = queries_of(std::span(partition_.pieces[place]));
  return queries_[place];
}

RingReads::Queries RingReads::queries_of(std::span<const Piece> pieces) const {
  Queries queries{.pieces = pieces, .seen = {}};
  for (const Piece& piece : queries.pieces) {
    if (one_interval_) {
      const MaskView view = mask_view(problem_, lists_, 0, 0);
      queries.seen.push_back({view.interval(piece.begin), view.interval(piece.end - 1)});
    } else {
      const std::vector<Piece> read = intervals_read(problem_, lists_, piece, {0, problem_.seq_k});
      queries.seen.push_back(read.empty() ? Seen{} : Seen{read.front(), read.back()});
    }
  }
  return queries;
}

Piece RingReads::seen_of(const Seen& seen, Piece keys) {
  return {std::max(seen.first.begin, keys.begin), std::min(seen.last.end, keys.end)};
}

void RingReads::add_pairs(const Queries& queries, std::size_t query_piece, Piece keys) {
  const Piece piece = queries.pieces[query_piece];
  const auto add = [&](Piece interval, std::int64_t pairs) {
    if (pairs == 0) return;
    found_.push_back({static_cast<std::int64_t>(query_piece), piece, interval, pairs, false});
  };
  const auto& [first, last] = queries.seen[query_piece];
  const Piece seen = seen_of({first, last}, keys);
  if (seen.empty()) return;
  if (!one_interval_) {
    for (const Piece& interval : intervals_read(problem_, lists_, piece, keys)) {
      add(interval, count_pairs(problem_, lists_, piece, interval));
    }
    return;
  }
  // Both ends of what a query sees rise with the query.
  const bool all = last.begin <= seen.begin && first.end >= seen.end;
  add(seen,
      all ? checked_multiply(checked_multiply(piece.size(), seen.size()), problem_.batch * problem_.heads_q)
          : count_pairs(problem_, lists_, piece, seen));
}

void RingReads::find_reads(const Queries& queries, Piece part) {
  found_.clear();
  intervals_.clear();
  for (std::size_t q = 0; q < queries.pieces.size(); ++q) add_pairs(queries, q, part);
  for (const ChunkPair& pair : found_) intervals_.push_back(pair.keys);
  if (intervals_.size() > 1) join(intervals_);
  for (const Piece& interval : intervals_) {
    Read read{.keys = interval,
              .first_pair = pairs_.size(),
              .sent = interval,
              .row_count = interval.size() * problem_.batch * problem_.heads_kv};
    for (const ChunkPair& pair : found_) {
      if (interval.begin <= pair.keys.begin && pair.keys.end <= interval.end) pairs_.push_back(pair);
    }
    read.pair_count = pairs_.size() - read.first_pair;
    if (problem_.mask.dilation_count > 0) count_dilated_rows(queries.pieces, read);
    reads_.push_back(read);
  }
}

bool RingReads::describe(const Queries& queries, Piece part) {
  key_.clear();
  bool sees = false;
  for (std::size_t q = 0; q < queries.pieces.size(); ++q) {
    if (seen_of(queries.seen[q], part).empty()) {
      key_.push_back(0);
      continue;
    }
    sees = true;
    const Piece piece = queries.pieces[q];
    const bool before = part.begin < piece.begin;
    key_.push_back(before ? 1 : 2);
    // Where the window ends within the two, it matters how far apart they are.
    const Mask& mask = problem_.mask;
    const std::int64_t reach = before ? mask.window_left : mask.causal ? 0 : mask.window_right;
    const std::int64_t farthest = before ? piece.end - 1 - part.begin : part.end - 1 - piece.begin;
    if (reach < farthest) key_.insert(key_.end(), {part.begin - piece.begin, piece.size()});
    // Pieces that have no position in common share one segment at most; see rows_read.cpp.
    for (const MaskView& pattern : patterns_) {
      const Piece segment = pattern.segment(before ? piece.begin : piece.end - 1);
      const Piece keys{std::max(part.begin, segment.begin), std::min(part.end, segment.end)};
      key_.push_back(keys.size());
      if (keys.empty()) continue;
      const Piece asking{std::max(piece.begin, segment.begin), std::min(piece.end, segment.end)};
      const std::int64_t rate = pattern.dilation.rate;
      key_.insert(key_.end(), {keys.begin - part.begin, (keys.begin - segment.begin) % rate, asking.size(),
                               (asking.begin - segment.begin) % rate});
    }
  }
  return sees;
}

std::size_t RingReads::KeyHash::operator()(const Key& key) const {
  std::uint64_t hash = kHashStart;
  for (const std::int64_t value : key) mix(hash, value);
  return hash;
}

void RingReads::read_part(const Queries& queries, Piece part) {
  if (patterns_.empty()) return find_reads(queries, part);
  if (!describe(queries, part)) return;
  const auto [place, is_new] = known_.try_emplace(key_);
  Known& known = place->second;
  const auto moved = [](Piece piece, std::int64_t by) { return Piece{piece.begin + by, piece.end + by}; };
  const std::size_t first_pair = pairs_.size();
  if (is_new) {
    const std::size_t first_read = reads_.size();
    find_reads(queries, part);
    known = {{reads_.begin() + static_cast<std::ptrdiff_t>(first_read), reads_.end()},
             {pairs_.begin() + static_cast<std::ptrdiff_t>(first_pair), pairs_.end()}};
    for (Read& read : known.reads) {
      read.keys = moved(read.keys, -part.begin);
      read.sent = moved(read.sent, -part.begin);
      read.first_pair -= first_pair;
    }
    for (ChunkPair& pair : known.pairs) pair.keys = moved(pair.keys, -part.begin);
    return;
  }
  for (Read read : known.reads) {
    read.keys = moved(read.keys, part.begin);
    read.sent = moved(read.sent, part.begin);
    read.first_pair += first_pair;
    reads_.push_back(read);
  }
  for (ChunkPair pair : known.pairs) {
    pair.queries = queries.pieces[static_cast<std::size_t>(pair.query_piece)];
    pair.keys = moved(pair.keys, part.begin);
    pairs_.push_back(pair);
  }
}

std::span<const RingReads::Read> RingReads::between(int reader, int owner) {
  reads_.clear();
  pairs_.clear();
  const Queries& queries = queries_of(reader);
  for (const Piece& part : parts(owner)) read_part(queries, part);
  return reads_;
}

std::vector<ChunkPair> RingReads::local(int rank) const {
  const std::vector<Piece>& pieces = partition_.pieces[static_cast<std::size_t>(rank)];
  std::vector<ChunkPair> local;
  for (std::size_t q = 0; q < pieces.size(); ++q) {
    bool first = true;
    const auto add = [&](Piece keys) {
      const std::int64_t pairs = count_pairs(problem_, lists_, pieces[q], keys);
      if (first || pairs > 0) local.push_back({static_cast<std::int64_t>(q), pieces[q], keys, pairs, first});
      first = false;
    };
    const auto is_own = [&](Piece part) {
      return part.begin >= pieces[q].begin && part.end <= pieces[q].end;
    };
    for (const Piece& part : parts(rank)) {
      if (is_own(part)) add(part);
    }
    for (const Piece& part : parts(rank)) {
      if (is_own(part)) continue;
      for (const Piece& keys : intervals_read(problem_, lists_, pieces[q], part)) add(keys);
    }
  }
  return local;
}

void RingReads::count_dilated_rows(std::span<const Piece> queries, Read& read) const {
  read.sent = {Mask::kUnlimited, 0};
  read.row_count = 0;
  const auto add = [&](std::int64_t b, std::int64_t kv, std::int64_t times) {
    for (const RowRun& run : dilated_rows_read(problem_, lists_, b, kv, queries, read.keys)) {
      read.sent.begin = std::min(read.sent.begin, run.begin);
      read.sent.end = std::max(read.sent.end, run.begin + (run.count - 1) * run.stride + 1);
      read.row_count += times * run.count;
    }
  };
  for (const HeadsAlike& heads : heads_alike_) add(0, heads.first, problem_.batch * heads.count);
  if (!patterns_.empty()) return;
  for (std::int64_t b = 0; b < problem_.batch; ++b) {
    for (std::int64_t kv = 0; kv < problem_.heads_kv; ++kv) add(b, kv, 1);
  }
}

Transfer RingReads::transfer(const Read& read, int reader, int owner) const {
  Transfer transfer;
  transfer.owner = owner;
  transfer.reader = reader;
  transfer.keys = read.sent;
  transfer.row_count = read.row_count;
  for (const ChunkPair& pair : pairs(read)) transfer.pairs.push_back(as_sent(pair, read));
  if (problem_.mask.dilation_count > 0) {
    const std::vector<Piece>& queries = partition_.pieces[static_cast<std::size_t>(reader)];
    for (std::int64_t b = 0; b < problem_.batch; ++b) {
      for (std::int64_t kv = 0; kv < problem_.heads_kv; ++kv) {
        transfer.rows.push_back(dilated_rows_read(problem_, lists_, b, kv, queries, read.keys));
      }
    }
  }
  return transfer;
}

std::int64_t RingReads::most_slots() const {
  if (partition_.ranks() == 1) return 0;
  if (!one_interval_) return Mask::kUnlimited;  // a part may have any number of intervals that are read
  std::int64_t most = 0;                        // transfers in a step
  for (int owner = 0; owner < partition_.ranks(); ++owner) {
    most = std::max<std::int64_t>(most, std::ssize(parts(owner)));
  }
  return (partition_.ranks() - 1) * most;
}

std::uint64_t RingReads::shape(const Read& read) const {
  std::uint64_t hash = kHashStart;
  for (const ChunkPair& pair : pairs(read)) mix_shape(hash, as_sent(pair, read));
  return hash;
}

RingReads::Largest RingReads::most_read(const Queries& queries, Piece part) {
  reads_.clear();
  pairs_.clear();
  read_part(queries, part);
  Largest most;
  for (const Read& read : reads_) most.take(read.sent.size(), read.row_count);
  return most;
}

RingReads::Largest RingReads::most_of_part(Piece part) const {
  // Of keys before its queries a rank sees those that the window reaches.
  const bool reached = one_interval_ && problem_.mask.causal;
  const std::int64_t keys = reached ? std::min(part.size(), problem_.mask.window_left) : part.size();
  if (patterns_.empty()) return {keys, keys * problem_.batch * problem_.heads_kv};
  std::int64_t rows = 0;
  for (const HeadsAlike& heads : heads_alike_) {
    std::int64_t of_head = 0;
    for (const std::int64_t rate : heads.rates) of_head += divide_up(keys, rate);
    rows += heads.count * std::min(of_head, keys);
  }
  return {keys, rows * problem_.batch};
}

RingReads::Largest RingReads::largest() {
  struct Part {
    int owner;
    Piece keys;
  };
  std::vector<Part> longest_first;
  for (int owner = 0; owner < partition_.ranks(); ++owner) {
    for (const Piece& part : parts(owner)) longest_first.push_back({owner, part});
  }
  std::ranges::stable_sort(longest_first, std::greater{}, [](const Part& part) { return part.keys.size(); });
  std::int64_t most_rate = 1;
  for (const MaskView& pattern : patterns_) {
    most_rate = std::max(most_rate, std::min(pattern.dilation.rate, problem_.seq_k));
  }
  // The first part of which somebody reads as much as can be read almost always ends the search.
  Largest most;
  for (const Part& part : longest_first) {
    Largest bound = most_of_part(part.keys);
    if (!patterns_.empty() && !most.covers(bound)) {
      // No rank reads more of a part than the queries next to it together: one of each offset is among them,
      // and those further away see no more.
      std::vector<Piece> others = {{std::max<std::int64_t>(part.keys.begin - most_rate, 0), part.keys.begin},
                                   {part.keys.end, std::min(part.keys.end + most_rate, problem_.seq_k)}};
      std::erase_if(others, [](const Piece& piece) { return piece.empty(); });
      bound = most_read(queries_of(std::span<const Piece>(others)), part.keys);
    }
    for (int reader = 0; reader < partition_.ranks() && !most.covers(bound); ++reader) {
      if (reader == part.owner) continue;
      const Largest read = most_read(queries_of(reader), part.keys);
      most.take(read.keys, read.rows);
    }
  }
  return most;
}

std::uint64_t shape_of(std::span<const ChunkPair> pairs) {
  std::uint64_t hash = kHashStart;
  for (const ChunkPair& pair : pairs) mix_shape(hash, pair);
  return hash;
}

}  // namespace headroom
