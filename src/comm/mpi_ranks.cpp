#include "headroom/comm/mpi_ranks.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/host_processes.h"
#include "comm/mpi_control.h"
#include "headroom/core/bytes.h"
#include "headroom/core/error.h"

namespace headroom {
namespace {

using Clock = std::chrono::steady_clock;

// MPI moves messages only inside of its calls, and a whole piece in one of them. Measured with 64 MiB each
// way and polls 1 ms apart: with less under way a rank is still waiting when its kernel ends
// (docs/distributed.md).
constexpr std::int64_t kPieceBytes = kMiB;
constexpr std::size_t kWindow = 4;  // pieces of one message that are under way

constexpr int kFirstTag = MpiControl::kTag + 1;
constexpr std::uint64_t kMessageTags = 32'767;  // what every MPI has

// How long a rank waits for an answer from one that may hang, and after an abort for the others.
constexpr std::chrono::milliseconds kPatience{1000};
constexpr std::chrono::milliseconds kGrace{300};
// How long a rank that ends with an error waits for another that may have found the same and says it.
constexpr std::chrono::seconds kSameReason{3};
// How long a rank whose process has ended may still be heard: it may have said why.
constexpr std::chrono::milliseconds kLastWords{50};

// Open MPI 4 copies from process to process with process_vm_readv. Containers often forbid that call, which
// it finds out with the first large message, and then fails. It has another way.
void avoid_forbidden_copies() {
  char from = 0;
  char to = 0;
  const iovec local{&to, 1};
  const iovec remote{&from, 1};
  if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1) return;
  setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", /*overwrite=*/0);
}

// What travels before the bytes of a message, so that both sides know of a wrong size.
struct Header {
  std::int64_t bytes = 0;
  std::int64_t step_number = -1;
  std::array<char, 48> step_name{};
};

// One side of one message.
struct Message {
  bool sends = false;
  int peer = 0;
  int tag = 0;
  std::uint64_t group = 0;
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  StepLabel step;
  Header header;
  bool header_done = false;
  MPI_Request header_request = MPI_REQUEST_NULL;
  std::int64_t started = 0;  // bytes in pieces that were given to MPI
  std::int64_t done = 0;     // bytes in pieces that MPI has finished, in order
  std::array<MPI_Request, kWindow> pieces{};

  [[nodiscard]] std::int64_t left() const { return header_done && done == bytes ? 0 : bytes - done + 1; }
};

std::size_t window_slot(std::int64_t begin) {
  return static_cast<std::size_t>(begin / kPieceBytes) % kWindow;
}

}  // namespace

class MpiRanks::Member final : public Communicator {
 public:
  explicit Member(Seconds timeout) : Communicator(timeout) {
    int already = 0;
    check_mpi(MPI_Initialized(&already), "MPI_Initialized");
    if (already != 0) fail(ErrorKind::runtime, "MPI was started in this process before");
    avoid_forbidden_copies();
    int provided = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &ranks_.rank), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &ranks_.count), "MPI_Comm_size");
    MPI_Request made = MPI_REQUEST_NULL;
    check_mpi(MPI_Comm_idup(MPI_COMM_WORLD, &all_, &made), "MPI_Comm_idup");
    finish_start(made);
    check_mpi(MPI_Comm_set_errhandler(all_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    sent_.resize(static_cast<std::size_t>(ranks_.count));
    received_.resize(static_cast<std::size_t>(ranks_.count));
    control_ = std::make_unique<MpiControl>(all_, ranks_);
    watch_processes();
  }

  ~Member() override {
    if (std::uncaught_exceptions() > errors_when_made_) {
      hear_of_abort();
      abort(fmt::format("rank {} ended with an error", ranks_.rank));
    }
    if (control_->aborted()) {
      // mpirun kills the others when this process returns an error: the rank that has ended them says why.
      if (!control_->aborted_here()) std::this_thread::sleep_for(kGrace);
      return;
    }
    control_->close();
    MPI_Finalize();
  }

  [[nodiscard]] Ranks ranks() const override { return ranks_; }

  void progress() override {
    if (!open_.empty()) advance();
  }

  void abort(std::string_view reason) noexcept override { control_->abort(reason); }

 private:
  // Another rank may have ended them for the same reason, and has said it.
  void hear_of_abort() noexcept {
    try {
      for (const auto until = Clock::now() + kSameReason; Clock::now() < until;) {
        control_->listen();
        std::this_thread::sleep_for(kIdleSleep);
      }
    } catch (const std::exception&) {  // they have ended
    }
  }

  void watch_processes() {
    const HostProcess own = HostProcess::self();
    std::vector<HostProcess> all(static_cast<std::size_t>(ranks_.count));
    MPI_Request gathered = MPI_REQUEST_NULL;
    check_mpi(MPI_Iallgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, all_, &gathered),
              "MPI_Iallgather");
    finish_start(gathered);
    processes_.emplace(all, ranks_.rank);
  }

  // Returns when all ranks have come as far. There is no way yet to end the others: mpirun does that when
  // this process ends with an error.
  void finish_start(MPI_Request& request) const {
    const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout());
    while (!test(request)) {
      if (Clock::now() > deadline) {
        fail(ErrorKind::runtime, "rank {} waited {:g} s for the other ranks to start MPI", ranks_.rank,
             timeout().count());
      }
      std::this_thread::sleep_for(kIdleSleep);
    }
  }

  [[nodiscard]] MessageGroup post(std::span<const Send> sends, std::span<const Receive> receives,
                                  const StepLabel& step, const Stream& stream) override {
    check(stream.device == nullptr || stream.device->host_accessible(),
          "messages over MPI are in memory that the host reaches, which that of {} is not",
          stream.device == nullptr ? "" : stream.device->name);
    control_->listen();
    ++groups_;
    for (const Send& send : sends) {
      Message& message = open_message(send.to, sent_, step, std::ssize(send.bytes));
      message.sends = true;
      message.data = const_cast<std::byte*>(send.bytes.data());  // MPI only reads it
      message.header = {.bytes = message.bytes, .step_number = step.number, .step_name = {}};
      step.name.copy(message.header.step_name.data(), message.header.step_name.size() - 1);
      check_mpi(MPI_Isend(&message.header, sizeof(Header), MPI_BYTE, send.to, message.tag, all_,
                          &message.header_request),
                "MPI_Isend");
      start_pieces(message);
    }
    for (const Receive& receive : receives) {
      Message& message = open_message(receive.from, received_, step, std::ssize(receive.bytes));
      message.sends = false;
      message.data = receive.bytes.data();
      check_mpi(MPI_Irecv(&message.header, sizeof(Header), MPI_BYTE, receive.from, message.tag, all_,
                          &message.header_request),
                "MPI_Irecv");
    }
    return {groups_};
  }

  Message& open_message(int peer, std::vector<std::uint64_t>& counts, const StepLabel& step,
                        std::int64_t bytes) {
    if (unused_.empty()) unused_.push_back(std::make_unique<Message>());
    open_.push_back(std::move(unused_.back()));
    unused_.pop_back();
    Message& message = *open_.back();
    const std::uint64_t number = counts[static_cast<std::size_t>(peer)]++;
    message.peer = peer;
    message.tag = kFirstTag + static_cast<int>(number % kMessageTags);
    message.group = groups_;
    message.bytes = bytes;
    message.step = step;
    message.header_done = false;
    message.started = message.done = 0;
    message.pieces.fill(MPI_REQUEST_NULL);
    return message;
  }

  void start_pieces(Message& message) {
    while (message.started < message.bytes &&
           message.started - message.done < static_cast<std::int64_t>(kWindow) * kPieceBytes) {
      MPI_Request& request = message.pieces[window_slot(message.started)];
      std::byte* begin = message.data + message.started;
      const auto size = static_cast<int>(std::min(kPieceBytes, message.bytes - message.started));
      if (message.sends) {
        check_mpi(MPI_Isend(begin, size, MPI_BYTE, message.peer, message.tag, all_, &request), "MPI_Isend");
      } else {
        check_mpi(MPI_Irecv(begin, size, MPI_BYTE, message.peer, message.tag, all_, &request), "MPI_Irecv");
      }
      message.started += size;
    }
  }

  [[nodiscard]] static bool test(MPI_Request& request) {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  }

  // Returns whether anything has moved.
  bool advance(Message& message) {
    const std::int64_t before = message.left();
    if (!message.header_done && test(message.header_request)) {
      message.header_done = true;
      if (!message.sends) {
        check_size(message);
        start_pieces(message);
      }
    }
    while (message.done < message.started && test(message.pieces[window_slot(message.done)])) {
      message.done = std::min(message.done + kPieceBytes, message.bytes);
      start_pieces(message);
    }
    return message.left() != before;
  }

  void check_size(const Message& message) {
    if (message.header.bytes == message.bytes) return;
    const StepLabel theirs{message.header.step_name.data(), message.header.step_number};
    abort(fmt::format("rank {} sends {} bytes in {}, rank {} receives {} bytes in {}", message.peer,
                      message.header.bytes, theirs.text(), ranks_.rank, message.bytes, message.step.text()));
    control_->listen();
  }

  bool advance() {
    control_->listen();
    bool moved = false;
    for (const std::unique_ptr<Message>& message : open_) moved = advance(*message) || moved;
    std::size_t kept = 0;
    for (std::unique_ptr<Message>& message : open_) {
      if (message->left() > 0) {
        open_[kept++].swap(message);
      } else {
        unused_.push_back(std::move(message));
      }
    }
    open_.resize(kept);
    return moved;
  }

  [[nodiscard]] State state(MessageGroup group) override {
    State state;
    for (const std::unique_ptr<Message>& message : open_) {
      if (message->group != group.number) continue;
      if (state.done) state = {.done = false, .peer = message->peer, .step = message->step};
      state.left += message->left();
    }
    control_->set_waits_for(state.done ? -1 : state.peer);
    waits_in_ = state.step;
    return state;
  }

  void progress_or_sleep(Clock::time_point) override {
    if (advance()) {
      idle_ = 0;
    } else if (++idle_ < kIdleYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kIdleSleep);
      if (idle_ % kIdleSleepsOfLook == 0) look_for_dead_ranks();
    }
  }

  void look_for_dead_ranks() {
    const std::optional<int> dead = processes_->ended();
    if (!dead) return;
    for (const auto until = Clock::now() + kLastWords; Clock::now() < until;) control_->listen();
    abort(fmt::format("rank {} died while rank {} waited in {}", *dead, ranks_.rank, waits_in_.text()));
    control_->listen();
  }

  [[nodiscard]] int blocked_by(int peer) const override {
    for (int steps = 0; steps < ranks_.count && peer != ranks_.rank; ++steps) {
      const std::optional<int> next = control_->ask(peer, kPatience);
      if (!next || *next < 0) break;
      peer = *next;
    }
    return peer;
  }

  // A waiting rank first looks again at once, then leaves its core to others: ranks may share one.
  static constexpr int kIdleYields = 200;
  static constexpr std::chrono::microseconds kIdleSleep{20};
  static constexpr int kIdleSleepsOfLook = 256;

  MPI_Comm all_ = MPI_COMM_NULL;
  Ranks ranks_;
  int errors_when_made_ = std::uncaught_exceptions();
  std::vector<std::unique_ptr<Message>> open_;  // in the order in which they were posted
  std::vector<std::unique_ptr<Message>> unused_;
  std::vector<std::uint64_t> sent_;      // [rank], messages so far: the next one's tag
  std::vector<std::uint64_t> received_;  // [rank]
  std::uint64_t groups_ = 0;
  int idle_ = 0;
  StepLabel waits_in_;
  std::unique_ptr<MpiControl> control_;
  std::optional<HostProcesses> processes_;
};

bool MpiRanks::available() {
  return true;
}

MpiRanks::MpiRanks(Seconds timeout) : member_(std::make_unique<Member>(timeout)) {}

MpiRanks::~MpiRanks() = default;

Communicator& MpiRanks::communicator() {
  return *member_;
}

}  // namespace headroom
