// What NCCL reports late or never, with copies of the host in its place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "comm/rank_mesh.h"
#include "cuda/nccl_on_host.h"
#include "headroom/comm/nccl_ranks.h"
#include "headroom/core/error.h"
#include "ops/cases.h"

namespace headroom {
namespace {

constexpr Seconds kLong{60};  // a test that fails ends

LaunchedRank rank_of_two(int rank, int port) {
  return {.ranks = {rank, 2}, .local_rank = 0, .address = "127.0.0.1", .port = port};
}

int next_port() {
  static std::atomic<int> next{21'000 + getpid() % 20'000};
  return next++;
}

class Switch {
 public:
  explicit Switch(std::atomic<bool>& on) : on_(on) { on_ = true; }
  Switch(const Switch&) = delete;
  Switch& operator=(const Switch&) = delete;
  ~Switch() { on_ = false; }

 private:
  std::atomic<bool>& on_;
};

std::string error_of_rank(int rank, int port, const std::function<void(Communicator&)>& body) {
  try {
    NcclRanks ranks(rank_of_two(rank, port), 0, kLong);
    body(ranks.communicator());
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// Rank 1 connects and then ends without making its pairs.
TEST(NcclOnHost, ARankThatEndsWhilePairsAreMadeIsNoticed) {
  const Switch waits(cuda::host_pairs_wait);
  const int port = next_port();
  const auto began = std::chrono::steady_clock::now();
  std::jthread other([&] { const RankMesh mesh(rank_of_two(1, port), kLong); });
  EXPECT_EQ(error_of_rank(0, port, [](Communicator&) {}), "rank 1 ended, or its host cannot be reached");
  EXPECT_LT(std::chrono::steady_clock::now() - began, kLong / 2);
}

// The same where it says why, at length.
TEST(NcclOnHost, AReasonWhilePairsAreMadeIsToldWhole) {
  const Switch waits(cuda::host_pairs_wait);
  const int port = next_port();
  std::atomic<bool> ended{false};
  std::string reason;
  for (int i = 0; i < 100; ++i) reason += fmt::format("reason {}, ", i);
  std::jthread other([&] {
    RankMesh mesh(rank_of_two(1, port), kLong);
    for (std::size_t begin = 0; begin < reason.size(); begin += 100) {
      Note note{.kind = Note::Kind::reason};
      reason.copy(reinterpret_cast<char*>(note.payload.data()), 100, begin);
      mesh.send(0, note);
    }
    mesh.send(0, {.kind = Note::Kind::abort});
    while (!ended) std::this_thread::yield();  // a connection that is closed takes unread notes with it
  });
  EXPECT_EQ(error_of_rank(0, port, [](Communicator&) {}), reason);
  ended = true;
}

TEST(NcclOnHost, ALongReasonArrivesWhole) {
  const int port = next_port();
  const std::string reason(1000, 'x');
  std::string heard;
  std::jthread other(
      [&] { heard = error_of_rank(1, port, [](Communicator& communicator) { communicator.barrier(); }); });
  EXPECT_EQ(error_of_rank(0, port,
                          [&](Communicator& communicator) {
                            communicator.abort(reason);
                            communicator.barrier();
                          }),
            reason);
  other.join();
  EXPECT_EQ(heard, reason);
}

// Both sides have given a message to NCCL, which finds out later that it cannot be moved.
TEST(NcclOnHost, AMessageThatFailsInFlightEndsTheRanks) {
  const Switch fails(cuda::host_messages_fail);
  const int port = next_port();
  const auto began = std::chrono::steady_clock::now();
  const auto exchange = [](Communicator& communicator) {
    const std::unique_ptr<Backend> backend = backend_under_test(1);
    const Stream stream = backend->stream(StreamId::main);
    std::array<std::byte, 100> bytes{};
    const std::array sends = {Send{1, bytes}};
    const std::array receives = {Receive{0, bytes}};
    const bool first = communicator.ranks().rank == 0;
    const MessageGroup group = communicator.start(
        first ? std::span<const Send>(sends) : std::span<const Send>(),
        first ? std::span<const Receive>() : std::span<const Receive>(receives), {"ring step", 3}, stream);
    communicator.wait(group);
    for (int i = 0; i < 3000; ++i) {
      communicator.barrier();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  };
  std::string heard;
  std::jthread other([&] { heard = error_of_rank(1, port, exchange); });
  const std::string line = "rank 0 in ring step 3, a message to rank 1: ncclSend: remote process exited";
  EXPECT_EQ(error_of_rank(0, port, exchange), line);
  other.join();
  EXPECT_EQ(heard, line);
  EXPECT_LT(std::chrono::steady_clock::now() - began, kLong / 2);
}

}  // namespace
}  // namespace headroom
