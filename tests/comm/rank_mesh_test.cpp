#include "comm/rank_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "headroom/core/error.h"

namespace headroom {
namespace {

int next_port() {
  static std::atomic<int> next{40'000 + getpid() % 20'000};
  return next++;
}

// Connects these ranks, each on a thread, and returns their errors.
std::vector<std::string> connect(
    const std::vector<LaunchedRank>& ranks, Seconds timeout,
    const std::function<void(RankMesh&)>& body = [](RankMesh&) {}) {
  std::vector<std::string> errors(ranks.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          RankMesh mesh(ranks[i], timeout);
          body(mesh);
        } catch (const Error& error) {
          errors[i] = error.what();
        }
      });
    }
  }
  return errors;
}

std::vector<LaunchedRank> local_ranks(int count, int port) {
  std::vector<LaunchedRank> ranks;
  for (int rank = 0; rank < count; ++rank) {
    ranks.push_back({.ranks = {rank, count}, .address = "localhost", .port = port});
  }
  return ranks;
}

// Connects with the port as a health check does, says `text` and ends.
void knock(int port, std::string_view text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  for (int tries = 0; tries < 500; ++tries) {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    const bool connected =
        ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    if (connected) ::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
    close(socket);
    if (connected) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  FAIL() << "nobody listens at port " << port;
}

TEST(RankMesh, StrangersDoNotEndTheLaunch) {
  const int port = next_port();
  auto ranks = local_ranks(2, port);
  const std::jthread strangers([&] {
    knock(port, "");
    knock(port, "GET / HTTP/1.1");
    knock(port, "not a rank, and with more bytes than a rank says");
    EXPECT_THAT(connect({ranks[1]}, Seconds(30)), testing::Each(""));
  });
  EXPECT_THAT(connect({ranks[0]}, Seconds(30)), testing::Each(""));
}

TEST(RankMesh, NotesArriveInOrderFromEveryRank) {
  constexpr std::int64_t kNotes = 5000;  // more than a connection holds
  for (const int count : {1, 2, 5}) {
    const auto errors = connect(local_ranks(count, next_port()), Seconds(30), [](RankMesh& mesh) {
      const auto [own, all] = mesh.ranks();
      std::vector<std::int64_t> next(static_cast<std::size_t>(all));
      for (std::int64_t i = 0; i < kNotes; ++i) {
        for (int rank = 0; rank < all; ++rank) {
          if (rank != own) mesh.send(rank, {.kind = Note::Kind::send, .bytes = i + own});
        }
      }
      std::int64_t missing = kNotes * (all - 1);
      while (missing > 0 || !mesh.flushed()) {
        mesh.flush();
        mesh.wait(RankMesh::Clock::now() + std::chrono::milliseconds(10));
        mesh.receive(
            [&](int from, const Note& note) {
              EXPECT_EQ(note.bytes, next[static_cast<std::size_t>(from)]++ + from);
              --missing;
            },
            [](int) {});
      }
    });
    EXPECT_THAT(errors, testing::Each(""));
  }
}

TEST(RankMesh, ARankThatEndsIsLost) {
  const auto errors = connect(local_ranks(2, next_port()), Seconds(30), [](RankMesh& mesh) {
    std::optional<int> lost;
    while (mesh.ranks().rank == 0 && !lost) {
      mesh.wait(RankMesh::Clock::now() + std::chrono::milliseconds(10));
      mesh.receive([](int, const Note&) {}, [&](int rank) { lost = rank; });
    }
    EXPECT_EQ(lost, mesh.ranks().rank == 0 ? std::optional(1) : std::nullopt);
  });
  EXPECT_THAT(errors, testing::Each(""));
}

TEST(RankMesh, SaysWhyRanksDoNotConnect) {
  const int port = next_port();
  const auto alone = connect({{.ranks = {1, 2}, .address = "127.0.0.1", .port = port}}, Seconds(0.2));
  EXPECT_THAT(alone[0], testing::HasSubstr("rank 1 could not reach rank 0 at 127.0.0.1:"));
  const auto missing = connect({local_ranks(3, port)[0], local_ranks(3, port)[1]}, Seconds(0.5));
  EXPECT_EQ(missing[0], "rank 0 waited 0.5 s for ranks to connect; missing: 2");
  EXPECT_NE(missing[1], "");
  const auto nowhere =
      connect({{.ranks = {1, 2}, .address = "no-such-host.invalid", .port = port}}, Seconds(1));
  EXPECT_THAT(nowhere[0], testing::HasSubstr("MASTER_ADDR 'no-such-host.invalid' is not a host"));
  const auto sizes =
      connect({local_ranks(2, port)[0], {.ranks = {1, 3}, .address = "localhost", .port = port}}, Seconds(5));
  EXPECT_EQ(sizes[0], "rank 1 was started as one of 3 ranks, rank 0 as one of 2");
  EXPECT_EQ(sizes[1], "rank 0 ended while the ranks were connecting");
  const auto twice =
      connect({local_ranks(3, port)[0], local_ranks(3, port)[1], local_ranks(3, port)[1]}, Seconds(5));
  EXPECT_EQ(twice[0], "two processes were started as rank 1");
  const auto taken = connect({local_ranks(2, port)[0], local_ranks(2, port)[0]}, Seconds(0.5));
  EXPECT_THAT(taken,
              testing::Contains(fmt::format(
                  "port {} is in use on the host of rank 0; set another MASTER_PORT for every rank", port)));
}

// Sets variables as long as it lives; the others of a launch are not set.
class Environment {
 public:
  explicit Environment(std::vector<std::pair<const char*, const char*>> variables) {
    clear();
    for (const auto& [name, value] : variables) setenv(name, value, 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() { clear(); }

 private:
  static void clear() {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
          "TORCHELASTIC_USE_AGENT_STORE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
          "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}) {
      unsetenv(name);
    }
  }
};

std::string launch_error() {
  try {
    static_cast<void>(launched_rank());
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(LaunchedRank, AsTorchrunSetsIt) {
  const Environment environment({{"RANK", "3"},
                                 {"WORLD_SIZE", "8"},
                                 {"LOCAL_RANK", "1"},
                                 {"LOCAL_WORLD_SIZE", "4"},
                                 {"MASTER_ADDR", "host"},
                                 {"MASTER_PORT", "29400"}});
  EXPECT_TRUE(rank_is_launched());
  EXPECT_EQ(launched_count(), 8);
  EXPECT_EQ(launched_rank().local_count, 4);
  EXPECT_EQ(launched_rank().ranks, (Ranks{3, 8}));
  EXPECT_EQ(launched_rank().local_rank, 1);
  EXPECT_EQ(launched_rank().address, "host");
  EXPECT_EQ(launched_rank().port, 29'400);
  setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  EXPECT_EQ(launched_rank().port, 29'401);
  setenv("TORCHELASTIC_USE_AGENT_STORE", "", 1);  // as good as not set
  EXPECT_EQ(launched_rank().port, 29'400);
}

TEST(LaunchedRank, AsMpirunSetsIt) {
  const Environment environment({{"OMPI_COMM_WORLD_RANK", "1"},
                                 {"OMPI_COMM_WORLD_SIZE", "2"},
                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_TRUE(rank_is_launched());
  EXPECT_EQ(launched_count(), 2);
  EXPECT_EQ(launched_rank().ranks, (Ranks{1, 2}));
  EXPECT_EQ(launched_rank().local_count, 2);
  EXPECT_EQ(launched_rank().address, "127.0.0.1");
  EXPECT_EQ(launched_rank().port, 29'500);
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1", 1);
  EXPECT_EQ(launch_error(), "the rank has number 1 on its host, and OMPI_COMM_WORLD_LOCAL_SIZE is 1");
  setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0", 1);
  EXPECT_THAT(launch_error(), testing::StartsWith("MASTER_ADDR is not set"));
}

TEST(LaunchedRank, NamesTheVariableThatIsWrong) {
  const auto error_with = [](const char* variable, const char* value) {
    const Environment environment({{"RANK", "0"},
                                   {"WORLD_SIZE", "2"},
                                   {"LOCAL_RANK", "0"},
                                   {"LOCAL_WORLD_SIZE", "1"},
                                   {"MASTER_ADDR", "host"},
                                   {"MASTER_PORT", "29400"}});
    if (value == nullptr) {
      unsetenv(variable);
    } else {
      setenv(variable, value, 1);
    }
    return launch_error();
  };
  for (const char* variable :
       {"WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK"}) {
    EXPECT_THAT(error_with(variable, nullptr), testing::StartsWith(fmt::format("{} is not set", variable)));
  }
  for (const char* variable : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"}) {
    EXPECT_THAT(error_with(variable, "two"), testing::HasSubstr(variable));
  }
  EXPECT_EQ(error_with("RANK", "2"), "RANK is 2 and WORLD_SIZE is 2; ranks are 0 to 1");
  EXPECT_THAT(error_with("MASTER_PORT", "65536"), testing::HasSubstr("MASTER_PORT"));
  const Environment nothing({});
  EXPECT_FALSE(rank_is_launched());
  EXPECT_EQ(launched_count(), 1);
  setenv("RANK", "0", 1);  // by itself it says nothing
  EXPECT_EQ(launched_count(), 1);
}

}  // namespace
}  // namespace headroom
