#include "headroom/comm/thread_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "comm/conformance.h"
#include "headroom/cpu.h"

namespace headroom {
namespace {

// body(rank) on a thread each; what a rank throws is its answer.
std::vector<std::string> on_ranks(int count, const std::function<void(int rank)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

constexpr Seconds kLong{60};  // a test that fails ends

class ThreadConformance : public testing::TestWithParam<int> {};

TEST_P(ThreadConformance, EveryCase) {
  for (const ConformanceCase& one : conformance_cases()) {
    SCOPED_TRACE(one.name);
    ThreadRanks ranks(GetParam(), kLong);
    EXPECT_THAT(on_ranks(GetParam(), [&](int rank) { one.run({ranks.communicator(rank)}); }),
                testing::Each(""))
        << one.name;
  }
}

TEST_P(ThreadConformance, EveryFaultEndsEveryRank) {
  if (GetParam() == 1) return;
  for (const FaultCase& one : fault_cases()) {
    ThreadRanks ranks(GetParam(), kLong);
    EXPECT_THAT(on_ranks(GetParam(), [&](int rank) { one.run({ranks.communicator(rank)}); }),
                testing::Each(one.text))
        << one.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ThreadConformance, testing::Values(1, 2, 3, 4, 5, 8, 16));

// Over a link that delivers late, everything is as without it.
TEST(ThreadRanks, ALinkDelaysAndChangesNothing) {
  for (const ConformanceCase& one : conformance_cases()) {
    ThreadRanks ranks(3, kLong, {.latency = Seconds(100e-6), .bytes_per_second = 5e9});
    EXPECT_THAT(on_ranks(3, [&](int rank) { one.run({ranks.communicator(rank)}); }), testing::Each(""));
  }
}

TEST(ThreadRanks, ALinkDeliversNoEarlierThanItsRate) {
  ThreadRanks ranks(2, kLong, {.latency = Seconds(0.01), .bytes_per_second = 1e6});
  std::vector<std::byte> bytes(20'000);  // 20 ms, and another 20 ms for the second message
  EXPECT_THAT(
      on_ranks(2,
               [&](int rank) {
                 Communicator& communicator = ranks.communicator(rank);
                 const auto began = std::chrono::steady_clock::now();
                 std::vector<std::byte> received(bytes.size());
                 const std::array sends = {Send{1, bytes}, Send{1, bytes}, Send{1, {}}};
                 const std::array receives = {Receive{0, received}, Receive{0, received}, Receive{0, {}}};
                 const auto group = rank == 0 ? communicator.start(sends, {}, {"test"}, {})
                                              : communicator.start({}, receives, {"test"}, {});
                 communicator.wait(group);
                 if (rank == 0) {
                   EXPECT_GE(std::chrono::steady_clock::now() - began, Seconds(0.05));
                 }
               }),
      testing::Each(""));
}

// The rank that hangs is named, also by those that wait for a rank which waits for it.
TEST(ThreadRanks, ARankThatHangsEndsTheOthers) {
  constexpr int kCount = 4;
  ThreadRanks ranks(kCount, Seconds(0.3));
  std::atomic<int> ended{0};
  const auto errors = on_ranks(kCount, [&](int rank) {
    if (rank == 2) {
      while (ended < kCount - 1) std::this_thread::yield();
      return;
    }
    std::vector<std::byte> bytes(1000);
    const std::array receives = {Receive{(rank + 1) % kCount, bytes}};
    Communicator& communicator = ranks.communicator(rank);
    try {
      communicator.wait(communicator.start({}, receives, {"ring step", rank}, {}));
    } catch (...) {
      ++ended;
      throw;
    }
  });
  EXPECT_EQ(errors[2], "");
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_EQ(errors[0], errors[3]);
  EXPECT_THAT(errors[0], testing::MatchesRegex("rank [013] waited 0.3 s in ring step [013] for rank 2, which "
                                               "did not answer"));
}

TEST(ThreadRanks, RanksThatWaitForEachOtherEnd) {
  ThreadRanks ranks(2, Seconds(0.1));
  const auto errors = on_ranks(2, [&](int rank) {
    std::vector<std::byte> bytes(8);
    const std::array receives = {Receive{1 - rank, bytes}};
    ranks.communicator(rank).wait(ranks.communicator(rank).start({}, receives, {"ring step", 0}, {}));
  });
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_THAT(errors[0], testing::HasSubstr("waits for rank"));
}

// Both sides poll in a kernel; once both have started, the polls alone move the message.
TEST(ThreadRanks, PollsMoveMessagesDuringKernels) {
  constexpr std::int64_t kElements = 1 << 20;  // 16 pieces
  ThreadRanks ranks(2, kLong);
  std::atomic<int> started{0};
  const auto program = [&](Context& context) {
    context.phase(Phase::step, [&] {
      const int peer = 1 - context.ranks().rank;
      const Tensor here = context.allocate({.name = "here", .shape = {kElements}});
      const Tensor there = context.allocate({.name = "there", .shape = {kElements}});
      context.run([&](const Stream&) { std::fill_n(here.data<float>(), kElements, 1.0F); });
      const std::array sends = {Parcel{peer, {here, 0, kElements}}};
      const std::array receives = {Parcel{peer, {there, 0, kElements}}};
      const Ticket arrived = context.exchange(sends, receives, {"test"});
      context.run([&](const Stream& stream) {
        ++started;
        while (started < 2) std::this_thread::yield();
        parallel_for(stream, 40, [](std::int64_t) {});
        ++started;
        while (started < 4) std::this_thread::yield();  // the other has copied what it has claimed
        parallel_for(stream, 1, [](std::int64_t) {});
      });
      context.wait(StreamId::main, arrived);
      context.run([&](const Stream&) { EXPECT_EQ(there.data<float>()[kElements - 1], 1); });
    });
  };
  EXPECT_THAT(on_ranks(2,
                       [&](int rank) {
                         CpuBackend backend(1);
                         Context rehearsal(backend.description(), {rank, 2});
                         program(rehearsal);
                         Communicator& communicator = ranks.communicator(rank);
                         Context context(backend, make_layout(std::move(rehearsal).take_ledger()),
                                         &communicator);
                         program(context);
                         EXPECT_EQ(communicator.waited(), Seconds(0));
                       }),
              testing::Each(""));
}

TEST(ThreadRanks, APhaseThatFailsOnOneRankEndsOnAll) {
  ThreadRanks ranks(2, kLong);
  const auto program = [](Context& context) {
    context.phase(Phase::step, [&] {
      const Tensor value = context.allocate({.name = "value", .shape = {1}});
      context.run([&](const Stream&) {
        check(context.ranks().rank == 1, "rank {} has had enough", context.ranks().rank);
        *value.data<float>() = 1;
      });
      context.all_reduce(value);
    });
  };
  const auto errors = on_ranks(2, [&](int rank) {
    CpuBackend backend(1);
    Context rehearsal(backend.description(), {rank, 2});
    program(rehearsal);
    Context context(backend, make_layout(std::move(rehearsal).take_ledger()), &ranks.communicator(rank));
    program(context);
  });
  EXPECT_THAT(errors,
              testing::ElementsAre("rank 0 has had enough", "rank 0 left phase 'step' with an error"));
}

// The buffers of a sum under way are given back with the phase, and a phase without messages can still run.
TEST(ThreadRanks, APhaseThatFailsBetweenTheHalvesOfASumEndsOnAll) {
  constexpr std::array<std::int64_t, 2> kCounts = {300'000, 400'000};
  ThreadRanks ranks(2, kLong);
  const auto step = [&](Context& context) {
    context.phase(Phase::step, [&] {
      const Tensor values = context.allocate({.name = "values", .shape = {700'000}});
      context.run([&](const Stream&) { std::fill_n(values.data<float>(), 700'000, 1.0F); });
      SumInFlight sum = context.start_reduce_scatter(values, kCounts);
      context.run([&](const Stream&) {
        check(context.ranks().rank == 1, "rank {} has had enough", context.ranks().rank);
      });
      context.finish_reduce_scatter(values, kCounts, std::move(sum));
      // Rank 0 may have sent its part before it failed.
      const Tensor value = context.allocate({.name = "value", .shape = {1}});
      context.all_reduce(value);
    });
  };
  const auto save = [](Context& context) {
    context.phase(Phase::save, [&] {
      const Tensor values = context.allocate({.name = "values", .shape = {700'000}});
      context.run([&](const Stream&) { std::fill_n(values.data<float>(), 700'000, 2.0F); });
    });
  };
  const auto errors = on_ranks(2, [&](int rank) {
    CpuBackend backend(1);
    Context rehearsal(backend.description(), {rank, 2});
    step(rehearsal);
    save(rehearsal);
    Context context(backend, make_layout(std::move(rehearsal).take_ledger()), &ranks.communicator(rank));
    try {
      step(context);
    } catch (const Error&) {
      save(context);
      EXPECT_EQ(context.ledger().usage(Space::device).live_bytes, 0);
      throw;
    }
  });
  EXPECT_THAT(errors,
              testing::ElementsAre("rank 0 has had enough", "rank 0 left phase 'step' with an error"));
}

TEST(ThreadRanks, WhatCannotBeIsRefused) {
  EXPECT_THROW(ThreadRanks(0), Error);
  EXPECT_THROW(ThreadRanks(2, Seconds(0)), Error);
  EXPECT_THROW(ThreadRanks(2, kLong, {.latency = Seconds(-1)}), Error);
  EXPECT_THROW(ThreadRanks(2, kLong, {.bytes_per_second = 0}), Error);
  ThreadRanks ranks(2);
  EXPECT_THROW(static_cast<void>(ranks.communicator(2)), Error);
}

}  // namespace
}  // namespace headroom
