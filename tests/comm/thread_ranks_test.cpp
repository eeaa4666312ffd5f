#include "headroom/comm/thread_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "headroom/cpu.h"
#include "memory/rehearsed.h"

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

TEST(ThreadRanks, EveryRankGetsTheSum) {
  for (const int count : {1, 2, 3, 8}) {
    ThreadRanks ranks(count);
    std::vector<std::vector<float>> values(static_cast<std::size_t>(count));
    std::vector<double> numbers(static_cast<std::size_t>(count));
    const auto errors = on_ranks(count, [&](int rank) {
      Communicator& communicator = ranks.communicator(rank);
      EXPECT_EQ(communicator.ranks(), (Ranks{rank, count}));
      std::vector<float>& mine = values[static_cast<std::size_t>(rank)];
      for (int call = 0; call < 100; ++call) {
        mine.assign(257, static_cast<float>(rank + call));
        std::vector<std::byte> workspace(static_cast<std::size_t>(reduction_workspace_bytes(count, 257 * 4)));
        communicator.all_reduce(TensorView(mine.data(), DType::f32, {257}), workspace, {});
        numbers[static_cast<std::size_t>(rank)] = communicator.all_reduce(static_cast<double>(1 << rank));
      }
    });
    EXPECT_THAT(errors, testing::Each(""));
    const auto sum = static_cast<float>(count * (count - 1) / 2 + 99 * count);
    for (const std::vector<float>& mine : values) EXPECT_THAT(mine, testing::Each(sum));
    EXPECT_THAT(numbers, testing::Each((1 << count) - 1));
  }
}

TEST(ThreadRanks, TheOrderOfTheRanksIsTheOrderOfTheSum) {
  ThreadRanks ranks(3);
  std::vector<double> sums(3);
  const std::vector<double> terms = {1e16, 1, -1e16};  // from the left the 1 is lost
  on_ranks(3, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    sums[r] = ranks.communicator(rank).all_reduce(terms[r]);
  });
  EXPECT_THAT(sums, testing::Each(0.0));
}

TEST(ThreadRanks, ARankThatFailsEndsTheOthers) {
  ThreadRanks ranks(3);
  const auto errors = on_ranks(3, [&](int rank) {
    if (rank == 1) {
      ranks.communicator(rank).abort("rank 1 is gone");
      return;
    }
    static_cast<void>(ranks.communicator(rank).all_reduce(1.0));
  });
  EXPECT_THAT(errors, testing::ElementsAre("rank 1 is gone", "", "rank 1 is gone"));
}

TEST(ThreadRanks, DifferentSizesAreAnErrorOnEveryRank) {
  ThreadRanks ranks(2);
  const auto errors = on_ranks(2, [&](int rank) {
    std::vector<float> values(static_cast<std::size_t>(3 + rank));
    std::vector<std::byte> workspace(64);
    ranks.communicator(rank).all_reduce(TensorView(values.data(), DType::f32, {3 + rank}), workspace, {});
  });
  EXPECT_THAT(errors, testing::Each(testing::HasSubstr("bytes in all-reduce, rank")));
}

// A program on ranks: rehearsed for each, then run by all.
TEST(ThreadRanks, AContextOnEveryRank) {
  constexpr int kCount = 3;
  ThreadRanks ranks(kCount);
  std::vector<float> found(kCount);
  const auto program = [](Context& context, float* result) {
    context.phase(Phase::step, [&] {
      const Tensor value = context.allocate({.name = "value", .shape = {1}});
      context.run(
          [&](const Stream&) { *value.data<float>() = static_cast<float>(context.ranks().rank + 1); });
      context.all_reduce(value);
      context.run([&](const Stream&) { *result = *value.data<float>(); });
    });
  };
  const auto errors = on_ranks(kCount, [&](int rank) {
    CpuBackend backend(1);
    Context rehearsal(backend.description(), {rank, kCount});
    program(rehearsal, nullptr);
    const std::span<const WorkRecord> work = rehearsal.work(Phase::step);
    ASSERT_EQ(work.size(), 3U);
    EXPECT_EQ(work[1].work.workspace_bytes, reduction_workspace_bytes(kCount, 4));
    EXPECT_EQ(work[1].work.kind, WorkKind::communication);
    EXPECT_EQ(work[1].work.bytes, 4);
    const Layout layout = make_layout(std::move(rehearsal).take_ledger());
    Context context(backend, layout, &ranks.communicator(rank));
    program(context, &found[static_cast<std::size_t>(rank)]);
  });
  EXPECT_THAT(errors, testing::Each(""));
  EXPECT_THAT(found, testing::Each(6.0F));
}

TEST(ThreadRanks, APhaseThatFailsOnOneRankEndsOnAll) {
  ThreadRanks ranks(2);
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

}  // namespace
}  // namespace headroom
