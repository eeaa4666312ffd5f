// Messages between GPUs that are none: what their streams are given is done at once, so every moment has come
// when it is recorded, and a copy is made when both sides of the message are there.
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "cuda/nccl_on_host.h"
#include "cuda/on_host.h"
// Kernels come after what they need of the language.
#include "comm/cuda/nccl.h"
#include "comm/cuda/sums.cu"
#include "parallel/cuda/rows.cu"

namespace headroom::cuda {}  // namespace headroom::cuda

// A moment that a message has yet to come to.
struct CUevent_st {
  std::atomic<bool> come{true};
};

namespace headroom::cuda {

Moment::~Moment() {
  delete event_;
}
void Moment::record(const Stream&) {
  if (event_ == nullptr) event_ = new CUevent_st;
  event_->come = true;
}
void Moment::hold(const Stream&) const {
  while (event_ != nullptr && !event_->come) std::this_thread::yield();
}
bool Moment::has_come() const {
  return event_->come;
}

namespace {

// The two sides of an NCCL pair meet here. Whichever comes second with a message copies it.
struct Meeting {
  struct Half {
    std::byte* data;
    std::int64_t bytes;
    CUevent_st* done;
  };
  std::deque<Half> sent;
  std::deque<Half> received;
  int sides = 0;  // that have made their pair
};

std::mutex meetings_mutex;
std::map<NcclId, Meeting> meetings;
std::map<const NcclPair*, NcclId> meeting_of;
std::uint64_t ids = 0;

}  // namespace

std::string nccl_is_missing() {
  return "";
}

void use_gpu(int) {}

NcclId make_nccl_id() {
  const std::lock_guard lock(meetings_mutex);
  NcclId id{};
  ++ids;
  std::memcpy(id.data(), &ids, sizeof ids);
  return id;
}

std::atomic<bool> host_pairs_wait{false};
std::atomic<bool> host_messages_fail{false};

NcclPair::NcclPair(const NcclId& id, bool sends, int gpu, Seconds timeout,
                   const std::function<void()>& meanwhile)
    : sends_(sends), gpu_(gpu), timeout_(timeout) {
  const auto sides = [&](int more) {
    const std::lock_guard lock(meetings_mutex);
    return meetings[id].sides += more;
  };
  const auto deadline = deadline_of_call();
  for (int met = sides(1); host_pairs_wait && met < 2; met = sides(0)) {
    if (Clock::now() > deadline) fail(ErrorKind::runtime, "a pair was not made in time");
    meanwhile();
    std::this_thread::yield();
  }
  const std::lock_guard lock(meetings_mutex);
  meeting_of[this] = id;
}
NcclPair::Clock::time_point NcclPair::deadline_of_call() const {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout_);
}
void NcclPair::check_messages() const {
  if (host_messages_fail && sends_) fail(ErrorKind::runtime, "ncclSend: remote process exited");
}
NcclPair::~NcclPair() {
  abort();
  const std::lock_guard lock(meetings_mutex);
  meeting_of.erase(this);
}
void NcclPair::move(std::byte* data, std::int64_t bytes, const Moment&, Moment& done) {
  const std::lock_guard lock(meetings_mutex);
  Meeting& meeting = meetings[meeting_of[this]];
  if (done.event_ == nullptr) done.event_ = new CUevent_st;
  done.event_->come = false;
  if (host_messages_fail) {
    done.event_->come = true;
    return;
  }
  (sends_ ? meeting.sent : meeting.received).push_back({data, bytes, done.event_});
  while (!meeting.sent.empty() && !meeting.received.empty()) {
    const Meeting::Half from = meeting.sent.front();
    const Meeting::Half to = meeting.received.front();
    meeting.sent.pop_front();
    meeting.received.pop_front();
    std::copy_n(from.data, std::min(from.bytes, to.bytes), to.data);
    from.done->come = true;
    to.done->come = true;
  }
}
void NcclPair::abort() noexcept {
  const std::lock_guard lock(meetings_mutex);
  Meeting& meeting = meetings[meeting_of[this]];
  for (const Meeting::Half& half : sends_ ? meeting.sent : meeting.received) half.done->come = true;
  (sends_ ? meeting.sent : meeting.received).clear();
}

MessageStream::~MessageStream() = default;
void MessageStream::open() {}
void MessageStream::copy(std::span<std::byte> to, std::span<const std::byte> from, const MessageStream&,
                         const Moment&, const Moment&, Moment&) {
  std::ranges::copy(from, to.begin());
}
void MessageStream::synchronize() noexcept {}

void copy_bytes(std::span<std::byte> to, std::span<const std::byte> from, const Stream&) {
  std::ranges::copy(from, to.begin());
}

}  // namespace headroom::cuda
