// Ranks over NCCL, with the device under test: all of them as threads here, connected over TCP as processes
// are. On the host a copy takes the place of NCCL's kernels.
#include "headroom/comm/nccl_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <functional>
#include <thread>

#include "comm/conformance.h"
#include "headroom/core/error.h"
#include "ops/cases.h"
#include "ring_cases.h"

namespace headroom {
namespace {

constexpr Seconds kLong{60};  // a test that fails ends

int next_port() {
  static std::atomic<int> next{20'000 + getpid() % 20'000};
  return next++;
}

std::vector<std::string> on_nccl_ranks(int count, Seconds timeout,
                                       const std::function<void(const RankUnderTest&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(count));
  const int port = next_port();
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          const std::unique_ptr<Backend> backend = backend_under_test(1);
          NcclRanks ranks({.ranks = {rank, count}, .address = "127.0.0.1", .port = port}, 0, timeout);
          body({ranks.communicator(), backend.get()});
        } catch (const Error& error) {
          errors[static_cast<std::size_t>(rank)] = error.what();
        }
      });
    }
  }
  return errors;
}

class NcclRanksTest : public OpsLevels {
 protected:
  // NCCL refuses two ranks on one GPU; tests/comm/nccl_processes_test.cpp has processes that it takes for
  // hosts.
  static std::vector<int> counts() {
    return levels_under_test() == std::vector{"on_host"} ? std::vector{1, 2, 3, 5} : std::vector{1};
  }
  void SetUp() override {
    OpsLevels::SetUp();
    if (const std::string missing = NcclRanks::missing(); !missing.empty()) GTEST_SKIP() << missing;
  }
};

TEST_P(NcclRanksTest, EveryConformanceCase) {
  for (const int count : counts()) {
    EXPECT_THAT(on_nccl_ranks(count, kLong,
                              [](const RankUnderTest& rank) {
                                for (const ConformanceCase& one : conformance_cases()) {
                                  SCOPED_TRACE(one.name);
                                  one.run(rank);
                                }
                              }),
                testing::Each(""));
  }
}

TEST_P(NcclRanksTest, EveryFaultEndsEveryRank) {
  for (const int count : counts()) {
    if (count == 1) continue;
    for (const FaultCase& one : fault_cases()) {
      EXPECT_THAT(on_nccl_ranks(count, kLong, one.run), testing::Each(one.text)) << one.name;
    }
  }
}

// The rank that hangs is named, also by those that wait for a rank which waits for it.
TEST_P(NcclRanksTest, ARankThatHangsEndsTheOthers) {
  if (counts().back() < 3) GTEST_SKIP() << "NCCL refuses several ranks on one GPU";
  std::atomic<int> ended{0};
  const auto errors = on_nccl_ranks(3, Seconds(0.5), [&](const RankUnderTest& rank) {
    const int own = rank.communicator.ranks().rank;
    std::array<std::byte, 8> bytes{};
    const std::array receives = {Receive{own + 1, bytes}};
    try {
      if (own < 2) rank.communicator.wait(rank.communicator.start({}, receives, {"ring step", own}, {}));
    } catch (...) {
      ++ended;
      throw;
    }
    while (ended < 2) std::this_thread::yield();
  });
  EXPECT_EQ(errors[2], "");
  for (const int rank : {0, 1}) {  // where both time out at once, each says that it waited
    EXPECT_THAT(
        errors[static_cast<std::size_t>(rank)],
        testing::MatchesRegex("rank [01] waited 0.5 s in ring step [01] for rank 2, which did not answer"));
  }
}

// Rank 1 is a process of its own here, which is killed.
TEST_P(NcclRanksTest, AProcessThatDiesEndsTheOthers) {
  if (counts().back() < 2) GTEST_SKIP() << "NCCL refuses several ranks on one GPU";
  const int port = next_port();
  const auto self = [&](int rank) {
    return LaunchedRank{.ranks = {rank, 2}, .local_rank = 0, .address = "127.0.0.1", .port = port};
  };
  const pid_t child = fork();
  if (child == 0) {
    const NcclRanks ranks(self(1), 0, kLong);
    static_cast<void>(raise(SIGKILL));
  }
  std::string line;
  try {
    NcclRanks ranks(self(0), 0, kLong);
    ranks.communicator().barrier();
  } catch (const Error& error) {
    line = error.what();
  }
  EXPECT_EQ(line, "rank 1 ended, or its host cannot be reached");
  waitpid(child, nullptr, 0);
}

TEST_P(NcclRanksTest, HostMemoryIsForNumbers) {
  if (counts().back() < 2) GTEST_SKIP() << "NCCL refuses several ranks on one GPU";
  const auto errors = on_nccl_ranks(2, kLong, [](const RankUnderTest& rank) {
    std::vector<std::byte> bytes(65);
    const std::array sends = {Send{1 - rank.communicator.ranks().rank, bytes}};
    rank.communicator.wait(rank.communicator.start(sends, {}, {"test"}, {}));
  });
  EXPECT_THAT(errors, testing::Contains(testing::HasSubstr("65 bytes in host memory")));
}

// Exchanges of receives and of sends alone, by ranks that run ahead of each other.
TEST_P(NcclRanksTest, AttentionOverRanks) {
  int ran = 0;
  for (const RingCase& c : ring_cases()) {
    const bool ring = c.way == AttentionWay::ring && c.attention.group == "causal" && c.ranks <= 5;
    const bool product = c.way == AttentionWay::product && c.ranks == 4 && c.group == 2;
    const bool chosen = ring || (product && c.attention.group == "product, full");
    const std::vector<int> possible = counts();
    if (!chosen || c.attention.problem.dtype != DType::f32 || c.ranks > possible.back()) continue;
    ++ran;
    EXPECT_THAT(on_nccl_ranks(c.ranks, kLong,
                              [&](const RankUnderTest& rank) {
                                EXPECT_LE(run_ring_case(c, rank.communicator, *rank.backend).worst(), 1)
                                    << c.name();
                              }),
                testing::Each(""));
  }
  EXPECT_GE(ran, counts().back());
}

INSTANTIATE_TEST_SUITE_P(Levels, NcclRanksTest, all_levels());

}  // namespace
}  // namespace headroom
