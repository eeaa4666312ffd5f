// Messages of a rank over NCCL. Both sides of a message tell each other over TCP that they have started it;
// when both have, and the sizes are equal, each gives it to NCCL. So no kernel of NCCL waits for a rank that
// has not come yet, and none writes more than was asked for. A thread does that, because the thread of a rank
// may be waiting for its GPU; the same thread ends the messages when another rank is lost.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/cuda/nccl.h"
#include "comm/rank_mesh.h"

namespace headroom {

class NcclMessages {
 public:
  using Clock = std::chrono::steady_clock;
  // Messages in host memory are numbers that ranks compare; they travel in notes.
  static constexpr std::int64_t kMostHostBytes = 64;

  NcclMessages(const LaunchedRank& self, int gpu, Seconds timeout);
  NcclMessages(const NcclMessages&) = delete;
  NcclMessages& operator=(const NcclMessages&) = delete;
  ~NcclMessages();

  [[nodiscard]] Ranks ranks() const { return mesh_.ranks(); }
  std::uint64_t start(std::span<const Send> sends, std::span<const Receive> receives, const StepLabel& step,
                      const Stream& stream);
  // The first message of a group that is not given to NCCL yet, and how many there are.
  struct Missing {
    int count = 0;
    int peer = -1;
    StepLabel step;
  };
  [[nodiscard]] Missing missing(std::uint64_t group);
  // Returns when something has changed since missing() was called, or at the deadline.
  void wait_for_change(Clock::time_point deadline);
  // Makes the streams of a group's messages wait for them.
  void settle(std::uint64_t group);
  void abort(std::string_view reason) noexcept;
  void throw_if_aborted();
  // Whom the peer waits for, -1 where it waits for none; nothing where it does not answer in time.
  [[nodiscard]] std::optional<int> ask(int peer);

 private:
  enum Side : std::size_t { kSend, kReceive };
  struct Message {
    Side side = kSend;
    int peer = 0;
    std::uint64_t group = 0;
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
    StepLabel step;
    Stream stream;
    bool on_gpu = false;
    bool met = false;        // both sides have started it, and it was given to NCCL
    bool in_flight = false;  // and has not moved yet
    bool settled = false;
    cuda::Moment ready;
    cuda::Moment done;
  };
  // Between this rank and another: messages that only this side has started, and those that only the other
  // has, by side as this rank sees it.
  struct Peer {
    std::array<std::deque<Message*>, 2> own;
    std::array<std::deque<Note>, 2> theirs;
    std::array<std::unique_ptr<cuda::NcclPair>, 2> pairs;
    std::deque<Note> ids;  // of pairs that are not made yet
    std::string reason;    // of the abort that is to follow
    bool said_goodbye = false;
    bool is_lost = false;
  };

  void make_pairs(int gpu, Seconds timeout);
  [[nodiscard]] Note next_id(int peer, Clock::time_point deadline);
  void read_notes_of_start();
  Message& open_message(Side side, int peer, const StepLabel& step, const Stream& stream);
  void post(Message& message);
  void match(int peer, Side side);
  void meet(Message& message, const Note& theirs);
  void handle(int from, const Note& note);
  void abort_pairs();
  void watch(int gpu);
  void follow_messages_in_flight();
  void check_in_flight(const Message& message);
  void send_to_others(const Note& note);
  void recycle();
  void end(std::string_view reason, bool told_by_other = false);
  void lose(int rank);
  [[nodiscard]] Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  template <class Predicate>
  [[nodiscard]] bool all_others(const Predicate& predicate) const;
  template <class Body>
  void on_all_pairs(const Body& body);

  Seconds timeout_;
  int errors_when_made_ = std::uncaught_exceptions();
  std::mutex mutex_;  // of everything below
  std::condition_variable changed_;
  RankMesh mesh_;
  std::vector<Peer> peers_;                     // [rank]
  std::vector<std::unique_ptr<Message>> open_;  // in the order in which they were started
  std::vector<std::unique_ptr<Message>> unused_;
  Clock::time_point last_moved_;
  std::uint64_t groups_ = 0;
  std::uint64_t changes_ = 0;
  std::uint64_t seen_ = 0;
  int waits_for_ = -1;
  int asked_ = -1;
  std::optional<int> answer_;
  bool aborted_ = false;
  bool told_by_other_ = false;  // that the ranks have ended
  std::string reason_;
  bool closing_ = false;
  std::jthread thread_;  // last: it uses all of the others
};

}  // namespace headroom
