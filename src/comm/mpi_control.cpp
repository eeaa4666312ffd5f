#include "comm/mpi_control.h"

#include <string>
#include <thread>

#include "headroom/core/error.h"

namespace headroom {

void check_mpi(int code, std::string_view call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text;
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  fail(ErrorKind::runtime, "{}: {}", call, std::string_view(text.data(), static_cast<std::size_t>(length)));
}

MpiControl::MpiControl(MPI_Comm all, Ranks ranks)
    : all_(all), ranks_(ranks), reasons_(static_cast<std::size_t>(ranks.count)) {
  receive_next();
}

void MpiControl::close() noexcept {
  if (request_ == MPI_REQUEST_NULL) return;
  MPI_Cancel(&request_);
  MPI_Wait(&request_, MPI_STATUS_IGNORE);
}

void MpiControl::receive_next() {
  check_mpi(MPI_Irecv(&heard_, sizeof(Note), MPI_BYTE, MPI_ANY_SOURCE, kTag, all_, &request_), "MPI_Irecv");
}

void MpiControl::listen() {
  while (!aborted_) {
    int arrived = 0;
    MPI_Status status;
    check_mpi(MPI_Test(&request_, &arrived, &status), "MPI_Test");
    if (arrived == 0) return;
    handle(status.MPI_SOURCE);
  }
  if (aborted_here_) fail(ErrorKind::runtime, "{}", reason_);
  throw OtherRankFailed(ErrorKind::runtime, reason_, std::source_location::current());
}

void MpiControl::handle(int from) {
  std::string& reason = reasons_[static_cast<std::size_t>(from)];
  if (heard_.kind == Kind::reason || heard_.kind == Kind::abort) reason += heard_.reason.data();
  if (heard_.kind == Kind::abort) {
    aborted_ = true;
    reason_ = reason;
    return;
  }
  if (heard_.kind == Kind::question) {
    const Note note{.kind = Kind::answer, .waits_for = waits_for_};
    // So small a message is copied by MPI at once: this does not wait for the other side.
    check_mpi(MPI_Send(&note, sizeof(Note), MPI_BYTE, from, kTag, all_), "MPI_Send");
  } else if (heard_.kind == Kind::answer && from == asked_) {
    answer_ = heard_.waits_for;
  }
  receive_next();
}

// Returns when MPI has taken the note, or at the deadline: a rank that hangs may never take it. So the note
// has to stay where it is.
void MpiControl::send(int peer, const Note& note, std::chrono::steady_clock::time_point deadline) noexcept {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Isend(&note, sizeof(Note), MPI_BYTE, peer, kTag, all_, &request);
  int taken = 0;
  do {
    MPI_Test(&request, &taken, MPI_STATUS_IGNORE);
  } while (taken == 0 && std::chrono::steady_clock::now() < deadline);
  if (taken == 0) MPI_Request_free(&request);
}

void MpiControl::abort(std::string_view reason) noexcept {
  if (aborted_) return;
  aborted_ = aborted_here_ = true;
  reason_ = reason;
  do {
    Note& note = ends_.emplace_back();
    reason.remove_prefix(reason.copy(note.reason.data(), note.reason.size() - 1));
    note.kind = reason.empty() ? Kind::abort : Kind::reason;
  } while (!reason.empty());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  for (int peer = 0; peer < ranks_.count; ++peer) {
    for (const Note& note : ends_) {
      if (peer != ranks_.rank) send(peer, note, deadline);
    }
  }
}

std::optional<int> MpiControl::ask(int peer, std::chrono::milliseconds patience) {
  static constexpr Note kQuestion{.kind = Kind::question};
  const auto deadline = std::chrono::steady_clock::now() + patience;
  answer_.reset();
  asked_ = peer;
  send(peer, kQuestion, deadline);
  while (!answer_ && std::chrono::steady_clock::now() < deadline) {
    listen();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return answer_;
}

}  // namespace headroom
