#include "comm/nccl_messages.h"

#include <algorithm>
#include <cstring>

#include "headroom/core/error.h"

namespace headroom {
namespace {

using Clock = NcclMessages::Clock;

// How often messages in flight are looked at, and how long a rank waits for an answer from one that may hang.
constexpr std::chrono::milliseconds kGlance{20};
constexpr std::chrono::milliseconds kPatience{1000};
// How long a rank that was ended waits for the others to read why.
constexpr std::chrono::milliseconds kGrace{300};
// Of why ranks end, in one note and in all: a text ends with a zero.
constexpr std::size_t kReasonOfNote = sizeof(Note::payload) - 1;
constexpr std::size_t kMostReason = 16 * kReasonOfNote;

Clock::time_point after(Seconds seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds);
}

template <std::size_t kSize>
void put_text(std::string_view text, std::array<char, kSize>& target) {
  text.copy(target.data(), kSize - 1);
}

}  // namespace

NcclMessages::NcclMessages(const LaunchedRank& self, int gpu, Seconds timeout)
    : timeout_(timeout), mesh_(self, timeout), peers_(static_cast<std::size_t>(self.ranks.count)) {
  try {
    make_pairs(gpu, timeout);
  } catch (const Error& error) {
    end(error.what());
    throw;
  }
  thread_ = std::jthread([this, gpu] { watch(gpu); });
}

NcclMessages::~NcclMessages() {
  if (std::uncaught_exceptions() > errors_when_made_) {
    abort(fmt::format("rank {} ended with an error", ranks().rank));
  }
  std::unique_lock lock(mutex_);
  if (!aborted_) {
    changed_.wait(lock, [&] {
      return aborted_ || std::ranges::none_of(open_, [](const auto& message) { return message->in_flight; });
    });
    send_to_others({.kind = Note::Kind::goodbye});
    changed_.wait_until(lock, after(timeout_), [&] {
      return aborted_ || all_others([](const Peer& one) { return one.said_goodbye; });
    });
  }
  // A connection that is closed with notes unread takes those with it that the other side has not read yet.
  if (aborted_) {
    mesh_.finish_sending();
    changed_.wait_for(lock, kGrace, [&] { return all_others([](const Peer& one) { return one.is_lost; }); });
  }
  closing_ = true;
}

// In round k, ranks whose numbers add up to k, modulo the number of ranks, make the pairs of both directions:
// every two ranks meet once, and no rank waits for one that is in a later round.
void NcclMessages::make_pairs(int gpu, Seconds timeout) {
  const auto [own, count] = ranks();
  for (int round = 0; round < count; ++round) {
    const int other = (round - own + count) % count;
    if (other == own) continue;
    for (const int from : {std::min(own, other), std::max(own, other)}) {
      const bool sends = from == own;
      cuda::NcclId id{};
      if (sends) {
        id = cuda::make_nccl_id();
        Note note{.kind = Note::Kind::id};
        std::ranges::copy(id, note.payload.begin());
        mesh_.send(other, note);
      } else {
        const Note note = next_id(other, after(timeout));
        std::copy_n(note.payload.begin(), id.size(), id.begin());
      }
      // The other rank may have failed meanwhile, and NCCL would wait for it until the timeout.
      auto next_look = Clock::now() + kGlance;
      const auto look = [&] {
        if (Clock::now() < next_look) return;
        next_look = Clock::now() + kGlance;
        read_notes_of_start();
      };
      peer(other).pairs[sends ? kSend : kReceive] =
          std::make_unique<cuda::NcclPair>(id, sends, gpu, timeout, look);
    }
  }
}

// Before there is a thread that reads notes. Those of ranks that have all their pairs already are kept for
// later. Throws where another rank has ended.
void NcclMessages::read_notes_of_start() {
  mesh_.flush();
  mesh_.receive(
      [&](int rank, const Note& note) {
        if (note.kind == Note::Kind::id) {
          peer(rank).ids.push_back(note);
        } else {
          handle(rank, note);
        }
      },
      [&](int rank) { lose(rank); });
  throw_if_aborted();
}

// Returns the id that another rank sends.
Note NcclMessages::next_id(int from, Clock::time_point deadline) {
  std::deque<Note>& ids = peer(from).ids;
  while (ids.empty()) {
    if (Clock::now() > deadline) {
      fail(ErrorKind::runtime, "rank {} waited {:g} s for rank {} to connect over NCCL", ranks().rank,
           timeout_.count(), from);
    }
    mesh_.wait(std::min(deadline, Clock::now() + kGlance));
    read_notes_of_start();
  }
  const Note note = ids.front();
  ids.pop_front();
  return note;
}

void NcclMessages::send_to_others(const Note& note) {
  for (int rank = 0; rank < ranks().count; ++rank) {
    if (rank != ranks().rank) mesh_.send(rank, note);
  }
}

template <class Predicate>
bool NcclMessages::all_others(const Predicate& predicate) const {
  return std::ranges::count_if(peers_, predicate) == std::ssize(peers_) - 1;
}

template <class Body>
void NcclMessages::on_all_pairs(const Body& body) {
  for (Peer& one : peers_) {
    for (const std::unique_ptr<cuda::NcclPair>& pair : one.pairs) {
      if (pair) body(*pair);
    }
  }
}

NcclMessages::Message& NcclMessages::open_message(Side side, int peer_rank, const StepLabel& step,
                                                  const Stream& stream) {
  if (unused_.empty()) unused_.push_back(std::make_unique<Message>());
  open_.push_back(std::move(unused_.back()));
  unused_.pop_back();
  Message& message = *open_.back();
  message.side = side;
  message.peer = peer_rank;
  message.group = groups_;
  message.step = step;
  message.stream = stream;
  message.on_gpu = stream.device != nullptr && !stream.device->host_accessible();
  message.met = message.in_flight = message.settled = false;
  return message;
}

std::uint64_t NcclMessages::start(std::span<const Send> sends, std::span<const Receive> receives,
                                  const StepLabel& step, const Stream& stream) {
  throw_if_aborted();
  {
    const std::lock_guard lock(mutex_);
    ++groups_;
    for (const Send& send : sends) {
      Message& message = open_message(kSend, send.to, step, stream);
      message.data = const_cast<std::byte*>(send.bytes.data());  // it is only read
      message.bytes = std::ssize(send.bytes);
      post(message);
    }
    for (const Receive& receive : receives) {
      Message& message = open_message(kReceive, receive.from, step, stream);
      message.data = receive.bytes.data();
      message.bytes = std::ssize(receive.bytes);
      post(message);
    }
  }
  throw_if_aborted();
  return groups_;
}

void NcclMessages::post(Message& message) {
  check(message.on_gpu || message.bytes <= kMostHostBytes,
        "ranks over NCCL send {} bytes in host memory; up to {} are accepted, or a GPU's memory",
        message.bytes, kMostHostBytes);
  if (message.on_gpu) message.ready.record(message.stream);
  Note note{.kind = message.side == kSend ? Note::Kind::send : Note::Kind::receive,
            .on_gpu = message.on_gpu ? 1 : 0,
            .bytes = message.bytes,
            .step_number = message.step.number};
  put_text(message.step.name, note.step_name);
  if (message.side == kSend && !message.on_gpu && message.bytes > 0) {
    std::memcpy(note.payload.data(), message.data, static_cast<std::size_t>(message.bytes));
  }
  mesh_.send(message.peer, note);
  peer(message.peer).own[message.side].push_back(&message);
  match(message.peer, message.side);
}

// The n-th message that one side has started meets the n-th of the other.
void NcclMessages::match(int rank, Side side) {
  std::deque<Message*>& own = peer(rank).own[side];
  std::deque<Note>& theirs = peer(rank).theirs[side];
  while (!aborted_ && !own.empty() && !theirs.empty()) {
    Message& message = *own.front();
    const Note note = theirs.front();
    own.pop_front();
    theirs.pop_front();
    meet(message, note);
  }
}

void NcclMessages::meet(Message& message, const Note& theirs) {
  const StepLabel their_step{theirs.step_name.data(), theirs.step_number};
  const bool sends = message.side == kSend;
  const int from = sends ? ranks().rank : message.peer;
  const int to = sends ? message.peer : ranks().rank;
  const std::string send_step = sends ? message.step.text() : their_step.text();
  const std::string receive_step = sends ? their_step.text() : message.step.text();
  if (message.on_gpu != (theirs.on_gpu != 0)) {
    const auto memory = [](bool gpu) { return gpu ? "a GPU's memory" : "host memory"; };
    const bool source_on_gpu = sends == message.on_gpu;
    return end(fmt::format("rank {} sends from {} in {}, rank {} receives into {} in {}", from,
                           memory(source_on_gpu), send_step, to, memory(!source_on_gpu), receive_step));
  }
  if (message.bytes != theirs.bytes) {
    return end(fmt::format("rank {} sends {} bytes in {}, rank {} receives {} bytes in {}", from,
                           sends ? message.bytes : theirs.bytes, send_step, to,
                           sends ? theirs.bytes : message.bytes, receive_step));
  }
  if (message.bytes > 0) {
    if (message.on_gpu) {
      peer(message.peer).pairs[message.side]->move(message.data, message.bytes, message.ready, message.done);
      message.in_flight = true;
      last_moved_ = Clock::now();
    } else if (!sends) {
      std::memcpy(message.data, theirs.payload.data(), static_cast<std::size_t>(message.bytes));
    }
  }
  message.met = true;
  ++changes_;
  changed_.notify_all();
}

NcclMessages::Missing NcclMessages::missing(std::uint64_t group) {
  const std::lock_guard lock(mutex_);
  seen_ = changes_;
  Missing missing;
  for (const std::unique_ptr<Message>& message : open_) {
    if (message->group != group || message->met) continue;
    if (missing.count++ == 0) {
      missing.peer = message->peer;
      missing.step = message->step;
    }
  }
  waits_for_ = missing.peer;
  return missing;
}

void NcclMessages::wait_for_change(Clock::time_point deadline) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return aborted_ || changes_ != seen_; });
  }
  throw_if_aborted();
}

void NcclMessages::settle(std::uint64_t group) {
  throw_if_aborted();
  const std::lock_guard lock(mutex_);
  for (const std::unique_ptr<Message>& message : open_) {
    if (message->group != group || message->settled) continue;
    if (message->on_gpu && message->bytes > 0) message->done.hold(message->stream);
    message->settled = true;
  }
  recycle();
}

void NcclMessages::recycle() {
  std::size_t kept = 0;
  for (std::unique_ptr<Message>& message : open_) {
    if (message->settled && !message->in_flight) {
      unused_.push_back(std::move(message));
    } else {
      open_[kept++].swap(message);
    }
  }
  open_.resize(kept);
}

void NcclMessages::abort(std::string_view reason) noexcept {
  const std::lock_guard lock(mutex_);
  end(reason);
}

// Whoever ends tells all others, also where somebody told him: his connections may end before the news is
// there.
void NcclMessages::end(std::string_view reason, bool told_by_other) {
  if (aborted_) return;
  aborted_ = true;
  told_by_other_ = told_by_other;
  reason_ = reason.substr(0, kMostReason);
  for (std::size_t begin = 0; begin < reason_.size(); begin += kReasonOfNote) {
    Note note{.kind = Note::Kind::reason};
    std::memcpy(note.payload.data(), reason_.data() + begin, std::min(reason_.size() - begin, kReasonOfNote));
    send_to_others(note);
  }
  send_to_others({.kind = Note::Kind::abort});
  abort_pairs();
  changed_.notify_all();
}

// All at once: the end of one may wait for the kernel of another, which runs until it is told. Returns when
// no message is under way.
void NcclMessages::abort_pairs() {
  std::vector<std::jthread> threads;
  on_all_pairs([&](cuda::NcclPair& pair) { threads.emplace_back([&pair] { pair.abort(); }); });
}

void NcclMessages::lose(int rank) {
  Peer& lost = peer(rank);
  lost.is_lost = true;
  changed_.notify_all();
  if (!lost.said_goodbye) end(fmt::format("rank {} ended, or its host cannot be reached", rank));
}

void NcclMessages::throw_if_aborted() {
  const std::lock_guard lock(mutex_);
  if (!aborted_) return;
  if (told_by_other_) {
    throw OtherRankFailed(ErrorKind::runtime, reason_, std::source_location::current());
  }
  fail(ErrorKind::runtime, "{}", reason_);
}

std::optional<int> NcclMessages::ask(int rank) {
  std::unique_lock lock(mutex_);
  asked_ = rank;
  answer_.reset();
  mesh_.send(rank, {.kind = Note::Kind::question});
  changed_.wait_for(lock, kPatience, [&] { return aborted_ || answer_.has_value(); });
  return answer_;
}

void NcclMessages::handle(int from, const Note& note) {
  switch (note.kind) {
    case Note::Kind::send:
    case Note::Kind::receive: {
      const Side side = note.kind == Note::Kind::send ? kReceive : kSend;
      peer(from).theirs[side].push_back(note);
      return match(from, side);
    }
    case Note::Kind::question: return mesh_.send(from, {.kind = Note::Kind::answer, .waits_for = waits_for_});
    case Note::Kind::answer:
      if (from == asked_) answer_ = note.waits_for < ranks().count ? note.waits_for : -1;
      break;
    case Note::Kind::reason:
      if (peer(from).reason.size() < kMostReason) {
        peer(from).reason += reinterpret_cast<const char*>(note.payload.data());
      }
      return;
    case Note::Kind::abort: return end(peer(from).reason, true);
    case Note::Kind::goodbye: peer(from).said_goodbye = true; break;
    case Note::Kind::id: break;  // these were read before the thread began
  }
  changed_.notify_all();
}

// Runs on the thread until the object ends.
void NcclMessages::watch(int gpu) {
  cuda::use_gpu(gpu);
  while (true) {
    mesh_.wait(Clock::now() + kGlance);
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    try {
      mesh_.flush();
      mesh_.receive([&](int from, const Note& note) { handle(from, note); }, [&](int rank) { lose(rank); });
      follow_messages_in_flight();
    } catch (const std::exception& error) {
      end(error.what());
    }
  }
}

void NcclMessages::check_in_flight(const Message& message) {
  try {
    peer(message.peer).pairs[message.side]->check_messages();
  } catch (const Error& error) {
    fail(ErrorKind::runtime, "rank {} in {}, a message {} rank {}: {}", ranks().rank, message.step.text(),
         message.side == kSend ? "to" : "from", message.peer, error.what());
  }
}

// A message that both sides have started and that never moves is noticed here: the thread of the rank may be
// waiting for its GPU.
void NcclMessages::follow_messages_in_flight() {
  if (aborted_) return;
  const Message* oldest = nullptr;
  for (const std::unique_ptr<Message>& message : open_) {
    if (!message->in_flight) continue;
    check_in_flight(*message);
    if (message->done.has_come()) {
      message->in_flight = false;
      last_moved_ = Clock::now();
      changed_.notify_all();
    } else if (oldest == nullptr) {
      oldest = message.get();
    }
  }
  recycle();
  if (oldest == nullptr ||
      Clock::now() - last_moved_ < std::chrono::duration_cast<Clock::duration>(timeout_)) {
    return;
  }
  end(fmt::format("rank {} waited {:g} s in {} for a message with rank {}, which did not move", ranks().rank,
                  timeout_.count(), oldest->step.text(), oldest->peer));
}

}  // namespace headroom
