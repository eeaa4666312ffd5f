#include "headroom/parallel/attention_time.h"

#include <algorithm>
#include <array>
#include <deque>
#include <numeric>

#include "headroom/core/error.h"
#include "parallel/head_groups.h"
#include "parallel/ring_depth.h"
#include "parallel/ring_reads.h"

namespace headroom {
namespace {

// What a rank receives in a slot and computes with it.
struct SlotItem {
  int reader = 0;
  int owner = 0;
  double rows = 0;  // sent, of all sequences and K/V heads
  double forward_seconds = 0;
  double backward_seconds = 0;
};

std::size_t at(int rank) {
  return static_cast<std::size_t>(rank);
}

// What the kernels of a ring's chunks take.
class ChunkSeconds {
 public:
  ChunkSeconds(const AttentionProblem& problem, const RankRates& rates) : rates_(rates) {
    const auto heads_q = static_cast<double>(problem.batch * problem.heads_q * problem.head_dim);
    const auto heads_kv = static_cast<double>(problem.batch * problem.heads_kv * problem.head_dim);
    const auto element = static_cast<double>(size_bytes(problem.dtype));
    const auto output = static_cast<double>(size_bytes(problem.dtype_of_output()));
    const auto sum = static_cast<double>(size_bytes(problem.dtype_of_sums()));
    const double lse = static_cast<double>(problem.batch * problem.heads_q) * sum;
    key_bytes_ = 2 * heads_kv * element;
    query_bytes_ = {heads_q * (element + sum) + lse, 2 * heads_q * (element + output) + lse};
    flops_ = {4.0 * static_cast<double>(problem.head_dim), 10.0 * static_cast<double>(problem.head_dim)};
    // The f32 output is closed, which narrows it; f32 gradients are cleared and narrowed. Open queries
    // (`sm90`) take less; the difference is small beside the products.
    end_bytes_ = {heads_q * (sum + output), (heads_q + 2 * heads_kv) * (2 * sum + element)};
    row_bytes_ = static_cast<double>(2 * problem.head_dim) * sum;
  }

  [[nodiscard]] double of(std::span<const ChunkPair> pairs, Pass pass) const {
    const PassRate& rate = pass == Pass::forward ? rates_.forward : rates_.backward;
    const std::size_t p = pass == Pass::forward ? 0 : 1;
    double seconds = 0;
    for (const ChunkPair& pair : pairs) {
      const double bytes = query_bytes_[p] * static_cast<double>(pair.queries.size()) +
                           static_cast<double>(p + 1) * key_bytes_ * static_cast<double>(pair.keys.size());
      seconds += rate.start_seconds + flops_[p] * static_cast<double>(pair.pairs) / rate.flops_per_second;
      if (rate.bytes_per_second > 0) seconds += bytes / rate.bytes_per_second;
    }
    return seconds;
  }
  // Once in a pass, for all tokens of a rank.
  [[nodiscard]] double ends(std::int64_t tokens, Pass pass) const {
    return moved(end_bytes_[pass == Pass::forward ? 0 : 1] * static_cast<double>(tokens));
  }
  // The reader clears the gradients of so many rows; their owner adds them to its own.
  [[nodiscard]] double clears(double rows) const { return moved(rows * row_bytes_); }
  [[nodiscard]] double adds(double rows) const { return moved(3 * rows * row_bytes_); }
  [[nodiscard]] double moved(double bytes) const {
    return rates_.memory_bytes_per_second > 0 ? bytes / rates_.memory_bytes_per_second : 0;
  }

 private:
  const RankRates& rates_;
  double key_bytes_ = 0;
  std::array<double, 2> query_bytes_{}, flops_{}, end_bytes_{};  // [pass]
  double row_bytes_ = 0;
};

// The slots of a schedule one after the other. They are not kept: a thousand ranks have two million of them.
class SlotStream {
 public:
  SlotStream(RingReads& reads, int ranks, const ChunkSeconds& seconds)
      : reads_(reads), ranks_(ranks), seconds_(seconds) {}

  // Returns what ranks receive in the next slot, until the next call; null after the last.
  [[nodiscard]] const std::vector<SlotItem>* next() {
    while (slot_ == used_) {
      if (++step_ >= ranks_) return nullptr;
      read_step();
    }
    return &slots_[slot_++];
  }

 private:
  void read_step() {
    for (std::vector<SlotItem>& slot : slots_) slot.clear();
    slot_ = used_ = 0;
    for (int reader = 0; reader < ranks_; ++reader) {
      const int owner = (reader + ranks_ - step_) % ranks_;
      std::size_t slot = 0;
      for (const RingReads::Read& read : reads_.between(reader, owner)) {
        if (slot == slots_.size()) slots_.emplace_back();
        const std::span<const ChunkPair> pairs = reads_.pairs(read);
        slots_[slot++].push_back({.reader = reader,
                                  .owner = owner,
                                  .rows = static_cast<double>(read.row_count),
                                  .forward_seconds = seconds_.of(pairs, Pass::forward),
                                  .backward_seconds = seconds_.of(pairs, Pass::backward)});
      }
      used_ = std::max(used_, slot);
    }
  }

  RingReads& reads_;
  int ranks_;
  const ChunkSeconds& seconds_;
  int step_ = 0;
  std::vector<std::vector<SlotItem>> slots_;  // of the step
  std::size_t slot_ = 0;
  std::size_t used_ = 0;  // of slots_
};

// The clock of every rank in one pass.
class RankClocks {
 public:
  RankClocks(int ranks, const LinkModel& link)
      : now(at(ranks)),
        computed(at(ranks)),
        waited(at(ranks)),
        sent_bytes(at(ranks)),
        sends_done(at(ranks)),
        link_(link),
        link_free_(at(ranks)) {}

  void compute(int rank, double seconds) {
    now[at(rank)] += seconds;
    computed[at(rank)] += seconds;
  }
  void wait(int rank, double until) {
    if (until <= now[at(rank)]) return;
    waited[at(rank)] += until - now[at(rank)];
    now[at(rank)] = until;
  }
  // Returns when the message is there.
  double send(int rank, double bytes) {
    double& free = link_free_[at(rank)];
    free = std::max(free, now[at(rank)]) + bytes / link_.bytes_per_second;
    sent_bytes[at(rank)] += bytes;
    sends_done[at(rank)] = free + link_.latency.count();
    return sends_done[at(rank)];
  }

  std::vector<double> now, computed, waited, sent_bytes, sends_done;  // [rank]

 private:
  LinkModel link_;
  std::vector<double> link_free_;
};

// A pass of a ring, slot by slot, as ring_attention.cpp runs it and ring_exchange.cpp waits.
class RingPlay {
 public:
  RingPlay(int ranks, Pass pass, const RankRates& rates, const ChunkSeconds& seconds, double row_bytes,
           double gradient_row_bytes, RingDepth depth)
      : clocks(ranks, rates.link),
        pass_(pass),
        seconds_(seconds),
        key_row_bytes_(row_bytes),
        gradient_row_bytes_(gradient_row_bytes),
        depth_(depth),
        ranks_(at(ranks)) {
    for (Rank& rank : ranks_) {
      rank.arrivals.resize(static_cast<std::size_t>(depth.keys + 1));
      rank.departures.resize(static_cast<std::size_t>(depth.computed));
      rank.gradients.resize(static_cast<std::size_t>(depth.received));
    }
  }

  // Slots that are under way while the one before them is computed.
  [[nodiscard]] std::int64_t depth() const { return depth_.keys; }
  // Messages of a slot leave. Those of the first slots do before anything is computed.
  void start(const std::vector<SlotItem>& slot) {
    for (const SlotItem& item : slot) {
      item_arrival_.push_back(clocks.send(item.owner, item.rows * key_row_bytes_));
    }
    // Each rank starts to receive before it sends.
    for (std::size_t i = 0; i < slot.size(); ++i) {
      Rank& reader = of(slot[i].reader);
      reader.arrivals[started_ % reader.arrivals.size()] = reader.started(item_arrival_[i]);
    }
    for (std::size_t i = 0; i < slot.size(); ++i) of(slot[i].owner).started(item_arrival_[i]);
    item_arrival_.clear();
    ++started_;
  }
  // `later` is the slot that is started, null after the last.
  void play(const std::vector<SlotItem>& slot, const std::vector<SlotItem>* later) {
    for (const SlotItem& item : slot) {
      const Rank& reader = of(item.reader);
      clocks.wait(item.reader, reader.arrivals[played_ % reader.arrivals.size()]);
    }
    ++played_;
    if (later != nullptr) start(*later);
    if (pass_ == Pass::forward) {
      for (const SlotItem& item : slot) clocks.compute(item.reader, item.forward_seconds);
      return;
    }
    for (const SlotItem& item : slot) {
      Rank& reader = of(item.reader);
      double& departure = reader.departures[reader.sent++ % reader.departures.size()];
      if (!depth_.packs) clocks.wait(item.reader, departure);
      clocks.compute(item.reader, seconds_.clears(item.rows) + item.backward_seconds);
      if (depth_.packs) clocks.wait(item.reader, departure);
      item_arrival_.push_back(clocks.send(item.reader, item.rows * gradient_row_bytes_));
      departure = reader.started(item_arrival_.back());
    }
    for (std::size_t i = 0; i < slot.size(); ++i) {
      Rank& owner = of(slot[i].owner);
      Gradients& next = owner.gradients[owner.received++ % owner.gradients.size()];
      add(slot[i].owner, next);
      next = {.rows = slot[i].rows, .arrival = owner.started(item_arrival_[i])};
    }
    item_arrival_.clear();
  }
  void finish() {
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      Rank& one = of(rank);
      for (std::size_t i = 0; i < one.gradients.size(); ++i) {
        add(rank, one.gradients[(one.received + i) % one.gradients.size()]);
      }
      clocks.wait(rank, clocks.sends_done[at(rank)]);
    }
  }

  RankClocks clocks;

 private:
  // On their way to the owner of their keys.
  struct Gradients {
    double rows = 0;
    double arrival = 0;
  };
  struct Rank {
    std::vector<double> arrivals;      // of K and V, by slot
    std::vector<double> departures;    // of gradients that it computed, by turns
    std::vector<Gradients> gradients;  // by turns
    std::size_t sent = 0;              // transfers of gradients
    std::size_t received = 0;
    double all_done = 0;

    // To wait for a message is to wait for those that the rank started before it. Returns when all are there.
    double started(double done) {
      all_done = std::max(all_done, done);
      return all_done;
    }
  };

  [[nodiscard]] Rank& of(int rank) { return ranks_[at(rank)]; }
  void add(int rank, Gradients& arrived) {
    if (arrived.rows == 0) return;
    clocks.wait(rank, arrived.arrival);
    clocks.compute(rank, seconds_.adds(arrived.rows));
    arrived = {};
  }

  Pass pass_;
  const ChunkSeconds& seconds_;
  double key_row_bytes_;
  double gradient_row_bytes_;
  RingDepth depth_;
  std::vector<Rank> ranks_;
  std::size_t started_ = 0;  // slots
  std::size_t played_ = 0;
  std::vector<double> item_arrival_;  // of the slot
};

PassTime summed_up(const RankClocks& clocks) {
  const auto ranks = static_cast<double>(clocks.now.size());
  return {
      .seconds = std::ranges::max(clocks.now),
      .compute_seconds = std::ranges::max(clocks.computed),
      .mean_compute_seconds = std::accumulate(clocks.computed.begin(), clocks.computed.end(), 0.0) / ranks,
      .waited_seconds = std::ranges::max(clocks.waited),
      .sent_bytes = static_cast<std::int64_t>(std::ranges::max(clocks.sent_bytes))};
}

// The all-to-alls before and after: the slowest rank's, since the others of its group wait for it.
void add_head_exchange(const AttentionProblem& of_rank, const Partition& ranks, const Partition& groups,
                       int group, const RankRates& rates, Pass pass, PassTime& time) {
  if (group == 1) return;
  constexpr std::array kExchanges = {3.0, 4.0};  // [pass], of head_groups.cpp
  std::int64_t most = 0;
  for (int rank = 0; rank < ranks.ranks(); ++rank) {
    most = std::max(most,
                    group_sent_bytes(of_rank, group, ranks.tokens(rank), groups.tokens(rank / group), pass));
  }
  const auto bytes = static_cast<double>(most);
  double seconds = bytes / rates.link.bytes_per_second +
                   kExchanges[pass == Pass::forward ? 0 : 1] * rates.link.latency.count();
  // Rows are packed before they leave and unpacked where they arrive.
  if (rates.memory_bytes_per_second > 0) seconds += 4 * bytes / rates.memory_bytes_per_second;
  time.exchanged_seconds = seconds;
  time.seconds += seconds;
  time.sent_bytes += most;
}

}  // namespace

AttentionTime play_attention(const AttentionProblem& whole, const AttentionForward& lists,
                             const Partition& partition, int group, const RankRates& rates) {
  check(rates.forward.flops_per_second > 0 && rates.backward.flops_per_second > 0 &&
            rates.link.bytes_per_second > 0 && rates.link.latency.count() >= 0,
        "rates of {:g} and {:g} operations and {:g} bytes per second: all have to be above zero",
        rates.forward.flops_per_second, rates.backward.flops_per_second, rates.link.bytes_per_second);
  AttentionProblem problem = whole;
  problem.heads_q /= group;
  problem.heads_kv /= group;
  const Partition members = partition_of_groups(partition, group);
  RingReads reads(problem, lists, members);
  const ChunkSeconds seconds(problem, rates);
  const auto row_bytes = [&](DType dtype) {
    return static_cast<double>(2 * problem.head_dim * size_bytes(dtype));
  };
  const auto play_of = [&](Pass pass) {
    return RingPlay(members.ranks(), pass, rates, seconds, row_bytes(problem.dtype),
                    row_bytes(problem.dtype_of_sums()),
                    RingDepth::of(reads.problem().mask.dilation_count > 0, pass));
  };
  RingPlay forward = play_of(Pass::forward);
  RingPlay backward = play_of(Pass::backward);
  const std::array plays = {&forward, &backward};

  SlotStream stream(reads, members.ranks(), seconds);
  std::deque<std::vector<SlotItem>> slots;  // the one that is computed, and those that may be started
  const auto read_slots = [&] {
    while (std::ssize(slots) <= std::max(forward.depth(), backward.depth())) {
      const std::vector<SlotItem>* next = stream.next();
      if (next == nullptr) return;
      slots.push_back(*next);
    }
  };
  read_slots();
  for (RingPlay* play : plays) {
    for (std::int64_t i = 0; i < std::min(play->depth(), std::ssize(slots)); ++i) {
      play->start(slots[static_cast<std::size_t>(i)]);
    }
  }
  for (int rank = 0; rank < members.ranks(); ++rank) {
    const std::vector<ChunkPair> local = reads.local(rank);
    forward.clocks.compute(rank, seconds.of(local, Pass::forward));
    backward.clocks.compute(rank, seconds.of(local, Pass::backward));
  }
  for (; !slots.empty(); slots.pop_front()) {
    read_slots();
    for (RingPlay* play : plays) {
      const bool more = play->depth() < std::ssize(slots);
      play->play(slots.front(), more ? &slots[static_cast<std::size_t>(play->depth())] : nullptr);
    }
  }
  AttentionTime time;
  for (RingPlay* play : plays) {
    const Pass pass = play == &forward ? Pass::forward : Pass::backward;
    play->finish();
    for (int rank = 0; rank < members.ranks() && members.ranks() > 1; ++rank) {
      play->clocks.compute(rank, seconds.ends(members.tokens(rank), pass));
    }
    PassTime& of_pass = pass == Pass::forward ? time.forward : time.backward;
    of_pass = summed_up(play->clocks);
    add_head_exchange(problem, partition, members, group, rates, pass, of_pass);
  }
  return time;
}

}  // namespace headroom
