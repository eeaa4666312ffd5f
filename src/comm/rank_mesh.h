// Short notes between ranks that are processes, on one host or several: one TCP connection for each pair.
// Notes arrive in the order in which a rank sends them to another.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "headroom/comm/launched_rank.h"

namespace headroom {

struct Note {
  enum class Kind : std::int32_t {
    send,  // the sender of the note has started to send a message, or to receive one
    receive,
    id,        // for a connection of the two ranks' own
    question,  // for whom does the other rank wait?
    answer,
    reason,  // a part of why an abort follows
    abort,
    goodbye,  // nothing comes after this
  };

  Kind kind = Kind::goodbye;
  std::int32_t waits_for = -1;
  std::int32_t on_gpu = 0;
  std::int32_t unused = 0;
  std::int64_t bytes = 0;  // of the message
  std::int64_t step_number = -1;
  std::array<char, 48> step_name{};
  std::array<std::byte, 176> payload{};  // a short message, an id, or a part of a reason
};

class RankMesh {
 public:
  using Clock = std::chrono::steady_clock;

  // Returns when every rank is connected with every other. Throws an error of kind runtime where that takes
  // longer than the timeout, or where the ranks do not fit together.
  RankMesh(const LaunchedRank& self, Seconds timeout);
  RankMesh(const RankMesh&) = delete;
  RankMesh& operator=(const RankMesh&) = delete;
  ~RankMesh();

  [[nodiscard]] Ranks ranks() const { return ranks_; }
  // Never waits: what the connection does not take now goes out with flush(). A note to a rank that is gone
  // is dropped.
  void send(int peer, const Note& note);
  void flush();
  [[nodiscard]] bool flushed() const;
  // Nothing is sent after this; notes of the others still arrive.
  void finish_sending() noexcept;

  // Returns when something can be read or sent, or at the deadline. It may be called while another thread
  // sends.
  void wait(Clock::time_point deadline) const;
  // Calls handle(peer, note) for every whole note that has arrived, and lost(peer) once where a connection
  // has ended.
  template <class Handle, class Lost>
  void receive(const Handle& handle, const Lost& lost) {
    for (int peer = 0; peer < ranks_.count; ++peer) {
      if (peer == ranks_.rank) continue;
      const bool ended = read_available(peer);
      std::vector<std::byte>& inbox = connections_[static_cast<std::size_t>(peer)].inbox;
      std::size_t begin = 0;
      for (; inbox.size() - begin >= sizeof(Note); begin += sizeof(Note)) {
        handle(peer, note_at(std::span(inbox).subspan(begin, sizeof(Note))));
      }
      inbox.erase(inbox.begin(), inbox.begin() + static_cast<std::ptrdiff_t>(begin));
      if (ended) lost(peer);
    }
  }

 private:
  struct Connection {
    int socket = -1;
    std::vector<std::byte> inbox;
    std::vector<std::byte> outbox;
  };

  void connect_all(const LaunchedRank& self, Seconds timeout);
  void close_all() noexcept;
  // Returns whether the connection has ended.
  bool read_available(int peer);
  [[nodiscard]] static Note note_at(std::span<const std::byte> bytes);

  Ranks ranks_;
  std::vector<Connection> connections_;  // [rank]
};

}  // namespace headroom
