// Short messages beside the data of ranks over MPI: one rank ends all of them, or asks another for whom it
// waits. They are handled whenever a rank calls its communicator.
#pragma once

#include <mpi.h>

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/memory/communicator.h"

namespace headroom {

// Throws unless the call was successful.
void check_mpi(int code, std::string_view call);

class MpiControl {
 public:
  static constexpr int kTag = 0;

  MpiControl(MPI_Comm all, Ranks ranks);
  MpiControl(const MpiControl&) = delete;
  MpiControl& operator=(const MpiControl&) = delete;
  ~MpiControl() = default;
  // To be called before MPI ends, unless the ranks were aborted.
  void close() noexcept;

  // Handles what has arrived. Throws where the ranks have ended, as OtherRankFailed unless this rank has
  // ended them; MPI is not called any more then, because it would go on with messages from and to memory that
  // may be gone.
  void listen();
  void abort(std::string_view reason) noexcept;
  [[nodiscard]] bool aborted() const { return aborted_; }
  // Whether this rank has ended the others.
  [[nodiscard]] bool aborted_here() const { return aborted_here_; }

  // What other ranks are told when they ask. None is -1.
  void set_waits_for(int peer) { waits_for_ = peer; }
  // Returns whom the peer waits for, -1 where it waits for none; nothing where it does not answer in time.
  [[nodiscard]] std::optional<int> ask(int peer, std::chrono::milliseconds patience);

 private:
  enum class Kind : int { reason, abort, question, answer };
  struct Note {
    Kind kind = Kind::abort;
    int waits_for = -1;
    std::array<char, 248> reason{};  // or a part of one: MPI copies only small notes at once
  };

  void receive_next();
  void handle(int from);
  void send(int peer, const Note& note, std::chrono::steady_clock::time_point deadline) noexcept;

  MPI_Comm all_;
  Ranks ranks_;
  int waits_for_ = -1;
  bool aborted_ = false;
  bool aborted_here_ = false;         // by this rank
  Note heard_;                        // the next to arrive
  std::vector<std::string> reasons_;  // [rank], of the abort that is to follow
  std::string reason_;                // after an abort, why
  std::vector<Note> ends_;            // what this rank has ended the others with
  std::optional<int> answer_;
  int asked_ = -1;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace headroom
