#include "headroom/comm/thread_ranks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>

#include "comm/thread_channel.h"
#include "headroom/core/bytes.h"
#include "headroom/core/error.h"

namespace headroom {
namespace {

using Clock = std::chrono::steady_clock;

// Copied at once. Two ranks that copy one message share it piece by piece.
constexpr std::int64_t kPieceBytes = 256 * kKiB;
// Copied in one poll: some 150 us. Kernels poll every 20 us to 1 ms.
constexpr int kPiecesOfPoll = 4;

bool on_gpu(const Stream& stream) {
  return stream.device != nullptr && !stream.device->host_accessible();
}

}  // namespace

struct ThreadRanks::Group {
  class Member;

  Group(int ranks, Seconds timeout, const LinkModel& model);

  [[nodiscard]] Channel& channel(int from, int to) {
    return channels[static_cast<std::size_t>(from) * static_cast<std::size_t>(count) +
                    static_cast<std::size_t>(to)];
  }
  [[nodiscard]] Member& member(int rank) { return *members[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] bool models_link() const {
    return link.latency.count() > 0 || std::isfinite(link.bytes_per_second);
  }
  void abort(std::string_view why) noexcept;
  void throw_if_aborted();
  // Copies pieces that no rank has claimed, as long as there are `pieces` left, which it counts down. Returns
  // whether the message is there by that.
  bool copy(ThreadMessage& transfer, int& pieces, Clock::time_point now);
  // Lets the receiver's GPU copy a message whose sides have met.
  void copy_on_gpu(ThreadMessage& transfer, int from, int to);
  // Returns when no copy is under way, after the ranks have ended.
  void drain() noexcept;

  int count;
  LinkModel link;
  std::vector<Channel> channels;  // [from][to]
  std::vector<std::unique_ptr<Member>> members;
  std::atomic<int> copying{0};  // ranks that copy now
  std::atomic<bool> aborted{false};
  std::mutex reason_mutex;
  std::string reason;
};

class ThreadRanks::Group::Member final : public Communicator {
 public:
  Member(Group& group, Ranks ranks, Seconds timeout) : Communicator(timeout), group_(group), ranks_(ranks) {}

  [[nodiscard]] Ranks ranks() const override { return ranks_; }
  void progress() override {
    if (!open_.empty()) advance(kPiecesOfPoll);
  }
  void abort(std::string_view why) noexcept override { group_.abort(why); }
  void wake() { bell_.ring(); }
  [[nodiscard]] cuda::MessageStream& messages() { return messages_; }

 private:
  struct Open {
    ThreadMessage* transfer;
    Channel* channel;
    Channel::Side side;
    int peer;
    std::uint64_t group;
    Stream stream;         // that the messages come after
    bool arrived = false;  // as far as the host is concerned; one between GPUs stays here until it is settled
  };

  [[nodiscard]] MessageGroup post(std::span<const Send> sends, std::span<const Receive> receives,
                                  const StepLabel& step, const Stream& stream) override {
    group_.throw_if_aborted();
    const bool gpu = on_gpu(stream);
    if (gpu) {
      check(!group_.models_link(), "a link model delays messages of CPUs, not those of {}",
            stream.device->name);
      messages_.open();
    }
    ++groups_;
    for (const Send& send : sends) {
      post(Channel::Side::send, send.to, stream, [&](ThreadMessage& transfer) {
        transfer.source = send.bytes;
        transfer.send_step = step;
        transfer.visible = time_of_arrival(std::ssize(send.bytes));
        transfer.source_on_gpu = gpu;
        if (gpu) transfer.source_ready.record(stream);
      });
    }
    for (const Receive& receive : receives) {
      post(Channel::Side::receive, receive.from, stream, [&](ThreadMessage& transfer) {
        transfer.target = receive.bytes;
        transfer.receive_step = step;
        transfer.target_on_gpu = gpu;
        if (gpu) transfer.target_ready.record(stream);
      });
    }
    return {groups_};
  }

  template <class Fill>
  void post(Channel::Side side, int peer, const Stream& stream, const Fill& fill) {
    const bool sends = side == Channel::Side::send;
    const int from = sends ? ranks_.rank : peer;
    const int to = sends ? peer : ranks_.rank;
    Channel& channel = group_.channel(from, to);
    const auto [posted, met] = channel.post(side, fill);
    ThreadMessage& transfer = *posted;
    open_.push_back({&transfer, &channel, side, peer, groups_, stream});
    if (!met) return;
    if (transfer.source_on_gpu != transfer.target_on_gpu) {
      const auto memory = [](bool gpu) { return gpu ? "a GPU's memory" : "host memory"; };
      abort(fmt::format("rank {} sends from {} in {}, rank {} receives into {} in {}", from,
                        memory(transfer.source_on_gpu), transfer.send_step.text(), to,
                        memory(transfer.target_on_gpu), transfer.receive_step.text()));
      group_.throw_if_aborted();
    }
    if (transfer.source.size() != transfer.target.size()) {
      abort(fmt::format("rank {} sends {} bytes in {}, rank {} receives {} bytes in {}", from,
                        transfer.source.size(), transfer.send_step.text(), to, transfer.target.size(),
                        transfer.receive_step.text()));
      group_.throw_if_aborted();
    }
    if (transfer.source_on_gpu) group_.copy_on_gpu(transfer, from, to);
    group_.member(peer).wake();
  }

  [[nodiscard]] Clock::time_point time_of_arrival(std::int64_t bytes) {
    const Seconds taken(static_cast<double>(bytes) / group_.link.bytes_per_second);
    link_free_ = std::max(link_free_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(taken);
    return link_free_ + std::chrono::duration_cast<Clock::duration>(group_.link.latency);
  }

  // Returns whether a message has arrived.
  bool advance(int pieces) {
    group_.throw_if_aborted();
    const Clock::time_point now = Clock::now();
    bool some = false;
    for (Open& open : open_) {
      if (group_.copy(*open.transfer, pieces, now)) group_.member(open.peer).wake();
      if (open.arrived || open.transfer->left(now) > 0) continue;
      open.arrived = some = true;
    }
    std::erase_if(open_, [&](const Open& open) {
      if (!open.arrived || on_gpu(open.stream)) return false;
      open.channel->leave(*open.transfer);
      return true;
    });
    return some;
  }

  // The copy reads and writes in the order of its own stream; from here on both sides come after it.
  void settle(MessageGroup group) override {
    std::erase_if(open_, [&](const Open& open) {
      if (open.group != group.number || !on_gpu(open.stream)) return false;
      if (open.transfer->bytes() > 0) open.transfer->done.hold(open.stream);
      open.channel->leave(*open.transfer);
      return true;
    });
  }
  void add_on_device(DType dtype, std::span<std::byte> own, const std::byte* others,
                     const Stream& stream) override {
    cuda::add_in_order(dtype, ranks_, own, others, stream);
  }
  void copy_on_device(std::span<std::byte> to, std::span<const std::byte> from,
                      const Stream& stream) override {
    cuda::copy_bytes(to, from, stream);
  }

  [[nodiscard]] State state(MessageGroup group) override {
    State state;
    const Clock::time_point now = Clock::now();
    for (const Open& open : open_) {
      if (open.group != group.number || (on_gpu(open.stream) && open.transfer->left(now) == 0)) continue;
      if (state.done) {
        state = {.done = false,
                 .peer = open.peer,
                 .step = open.side == Channel::Side::send ? open.transfer->send_step
                                                          : open.transfer->receive_step};
      }
      state.left += open.transfer->left(now);
    }
    waits_for_.store(state.done ? -1 : state.peer, std::memory_order_relaxed);
    return state;
  }

  void progress_or_sleep(Clock::time_point deadline) override {
    const std::uint64_t seen = bell_.rings();
    const Clock::time_point before = Clock::now();
    if (advance(std::numeric_limits<int>::max())) return;
    for (const Open& open : open_) {
      const bool matched = open.transfer->matched.load(std::memory_order_acquire);
      if (matched && open.transfer->visible > before) deadline = std::min(deadline, open.transfer->visible);
    }
    bell_.wait(seen, deadline);
  }

  [[nodiscard]] int blocked_by(int peer) const override {
    for (int steps = 0; steps < ranks_.count && peer != ranks_.rank; ++steps) {
      const int next = group_.member(peer).waits_for_.load(std::memory_order_relaxed);
      if (next < 0) break;
      peer = next;
    }
    return peer;
  }

  Group& group_;
  Ranks ranks_;
  std::vector<Open> open_;  // in the order in which they were posted
  std::uint64_t groups_ = 0;
  Clock::time_point link_free_;  // when the last message has left
  std::atomic<int> waits_for_{-1};
  Bell bell_;
  cuda::MessageStream messages_;  // of a rank on a GPU: those that it receives
};

ThreadRanks::Group::Group(int ranks, Seconds timeout, const LinkModel& model)
    : count(ranks), link(model), channels(static_cast<std::size_t>(ranks * ranks)) {
  for (int rank = 0; rank < count; ++rank) {
    members.push_back(std::make_unique<Member>(*this, Ranks{rank, count}, timeout));
  }
}

bool ThreadRanks::Group::copy(ThreadMessage& transfer, int& pieces, Clock::time_point now) {
  if (!transfer.matched.load(std::memory_order_acquire) || now < transfer.visible) return false;
  if (transfer.source_on_gpu) return false;  // whoever has met the other side lets the GPU copy
  const std::int64_t bytes = transfer.bytes();
  for (; pieces > 0 && transfer.claimed.load(std::memory_order_relaxed) < bytes; --pieces) {
    // First say that memory is in use, then look whether the ranks have ended. A rank that ends them looks
    // the other way round, so one of the two sees the other.
    copying.fetch_add(1);
    const bool ended = aborted.load();
    const std::int64_t begin = ended ? bytes : transfer.claimed.fetch_add(kPieceBytes);
    const std::int64_t size = std::min(kPieceBytes, bytes - begin);
    if (size > 0)
      std::memcpy(transfer.target.data() + begin, transfer.source.data() + begin,
                  static_cast<std::size_t>(size));
    const bool last = size > 0 && transfer.copied.fetch_add(size, std::memory_order_acq_rel) + size == bytes;
    copying.fetch_sub(1);
    if (last || size <= 0) return last;
  }
  return false;
}

// An end of the ranks is seen as copy() sees it. Then the message never arrives: nobody may wait for its
// copy.
void ThreadRanks::Group::copy_on_gpu(ThreadMessage& transfer, int from, int to) {
  copying.fetch_add(1);
  try {
    if (!aborted.load()) {
      if (transfer.bytes() > 0) {
        member(to).messages().copy(transfer.target, transfer.source, member(from).messages(),
                                   transfer.source_ready, transfer.target_ready, transfer.done);
      }
      transfer.copied.store(transfer.bytes(), std::memory_order_release);
    }
  } catch (...) {
    copying.fetch_sub(1);
    throw;
  }
  copying.fetch_sub(1);
}

void ThreadRanks::Group::drain() noexcept {
  while (copying.load() > 0) std::this_thread::yield();
  for (const std::unique_ptr<Member>& member : members) member->messages().synchronize();
}

void ThreadRanks::Group::abort(std::string_view why) noexcept {
  {
    const std::lock_guard lock(reason_mutex);
    if (!aborted.load()) reason = why;
    aborted.store(true);
  }
  for (const std::unique_ptr<Member>& member : members) member->wake();
  drain();
}

void ThreadRanks::Group::throw_if_aborted() {
  if (!aborted.load(std::memory_order_relaxed)) return;
  drain();
  const std::lock_guard lock(reason_mutex);
  throw OtherRankFailed(ErrorKind::runtime, reason, std::source_location::current());
}

ThreadRanks::ThreadRanks(int count, Seconds timeout, const LinkModel& link) {
  check(count >= 1, "{} ranks are impossible; at least 1 is accepted", count);
  check(timeout.count() > 0, "a timeout of {:g} s is impossible; more than 0 is accepted", timeout.count());
  check(link.latency.count() >= 0 && link.bytes_per_second > 0,
        "a link with a latency of {:g} s and {:g} bytes/s is impossible", link.latency.count(),
        link.bytes_per_second);
  group_ = std::make_unique<Group>(count, timeout, link);
}

ThreadRanks::~ThreadRanks() = default;

Communicator& ThreadRanks::communicator(int rank) {
  check(rank >= 0 && rank < group_->count, "there is no rank {} of {}", rank, group_->count);
  return group_->member(rank);
}

}  // namespace headroom
