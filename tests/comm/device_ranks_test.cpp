// Ranks that are threads, each with a device of its own kind under test: the conformance cases, and attention
// over ranks with that device's kernels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "comm/conformance.h"
#include "headroom/comm.h"
#include "ops/cases.h"
#include "ring_cases.h"

namespace headroom {
namespace {

constexpr Seconds kLong{60};  // a test that fails ends

// body(rank) on a thread each; what a rank throws is its answer.
std::vector<std::string> on_device_ranks(int count, Seconds timeout,
                                         const std::function<void(const RankUnderTest&)>& body) {
  ThreadRanks ranks(count, timeout);
  std::vector<std::string> errors(static_cast<std::size_t>(count));
  std::vector<std::unique_ptr<Backend>> backends;
  for (int rank = 0; rank < count; ++rank) backends.push_back(backend_under_test(1));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body({ranks.communicator(rank), backends[static_cast<std::size_t>(rank)].get()});
        } catch (const Error& error) {
          errors[static_cast<std::size_t>(rank)] = error.what();
        }
      });
    }
  }
  return errors;
}

class DeviceRanks : public OpsLevels {};

TEST_P(DeviceRanks, EveryConformanceCase) {
  for (const int count : {1, 2, 3, 5}) {
    for (const ConformanceCase& one : conformance_cases()) {
      SCOPED_TRACE(one.name);
      EXPECT_THAT(on_device_ranks(count, kLong, one.run), testing::Each(""));
    }
  }
}

TEST_P(DeviceRanks, EveryFaultEndsEveryRank) {
  for (const int count : {2, 3}) {
    for (const FaultCase& one : fault_cases()) {
      EXPECT_THAT(on_device_ranks(count, kLong, one.run), testing::Each(one.text)) << one.name;
    }
  }
}

// The rank that hangs is named, also by those that wait for a rank which waits for it.
TEST_P(DeviceRanks, ARankThatHangsEndsTheOthers) {
  constexpr int kCount = 3;
  std::atomic<int> ended{0};
  const auto errors = on_device_ranks(kCount, Seconds(0.3), [&](const RankUnderTest& rank) {
    const int own = rank.communicator.ranks().rank;
    if (own == 2) {
      while (ended < kCount - 1) std::this_thread::yield();
      return;
    }
    void* memory = rank.backend->reserve(Space::device, 1000);
    const std::array receives = {Receive{own + 1, {static_cast<std::byte*>(memory), 1000}}};
    try {
      rank.communicator.wait(
          rank.communicator.start({}, receives, {"ring step", own}, rank.backend->stream(StreamId::main)));
    } catch (...) {
      ++ended;
      rank.backend->release(Space::device, memory, 1000);
      throw;
    }
  });
  EXPECT_EQ(errors[2], "");
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_THAT(errors[0],
              testing::MatchesRegex("rank [01] waited 0.3 s in ring step [01] for rank 2, which did not "
                                    "answer"));
}

TEST_P(DeviceRanks, BothSidesOfAMessageAreInMemoryOfOneKind) {
  const auto errors = on_device_ranks(2, kLong, [](const RankUnderTest& rank) {
    std::vector<std::byte> bytes(8);
    void* memory = rank.backend->reserve(Space::device, 16);
    const std::array sends = {Send{1, {static_cast<std::byte*>(memory), 8}}};
    const std::array receives = {Receive{0, bytes}};
    Communicator& communicator = rank.communicator;
    try {
      if (communicator.ranks().rank == 0) {
        communicator.wait(
            communicator.start(sends, {}, {"ring step", 1}, rank.backend->stream(StreamId::main)));
      } else {
        communicator.wait(communicator.start({}, receives, {"ring step", 1}, {}));
      }
      communicator.barrier();
    } catch (...) {
      rank.backend->release(Space::device, memory, 16);
      throw;
    }
  });
  EXPECT_THAT(errors, testing::Each("rank 0 sends from a GPU's memory in ring step 1, rank 1 receives into "
                                    "host memory in ring step 1"));
}

TEST_P(DeviceRanks, ALinkModelIsForCpus) {
  ThreadRanks ranks(2, kLong, {.latency = Seconds(1e-3)});
  const std::unique_ptr<Backend> backend = backend_under_test(1);
  const std::array sends = {Send{1, {}}};
  EXPECT_THROW(ranks.communicator(0).start(sends, {}, {"test"}, backend->stream(StreamId::main)), Error);
}

// A slice of the list of cases with every way in it, and long chains of chunks, over which errors of f32 must
// not add up; `headroom verify ring --device cuda:0` runs all of it.
TEST_P(DeviceRanks, AttentionWithinThePlainComputation) {
  const std::vector<RingCase> cases = ring_cases();
  std::map<std::string, int> ran;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const RingCase& c = cases[i];
    const std::string& group = c.attention.group;
    const bool long_chain =
        c.ranks == 16 && c.attention.problem.dtype == DType::f32 && (group == "full" || group == "documents");
    const bool in_slice = c.way == AttentionWay::product ? c.ranks == 4 : c.ranks <= 5 && i % 5 == 0;
    if ((!in_slice && !long_chain) || group == "larger heads") continue;  // long on the host
    ++ran[name(c.way, c.group)];
    EXPECT_LE(run_ring_case(c, [](int) { return backend_under_test(1); }).worst(), 1)
        << group << ": " << c.name();
  }
  EXPECT_GE(ran["ring"], 30);
  EXPECT_GE(ran["heads"], 4);
  EXPECT_GE(ran["product:2"], 10);
}

INSTANTIATE_TEST_SUITE_P(Levels, DeviceRanks, all_levels());

}  // namespace
}  // namespace headroom
