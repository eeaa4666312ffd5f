#include "headroom/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "headroom/core/error.h"

namespace headroom {
namespace {

TEST(ThreadPool, RunsEveryItemOnce) {
  for (const int threads : {1, 2, 4, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::int64_t count : {0, 1, 2, 3, 100, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      pool.run(count, [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
      for (const auto& run : runs) ASSERT_EQ(run, 1);
    }
  }
  EXPECT_THROW(ThreadPool(-1), Error);
  EXPECT_THROW(ThreadPool(1'000'000), Error);
  EXPECT_GE(ThreadPool().threads(), 1);
}

TEST(ThreadPool, SeveralThreadsTakePart) {
  ThreadPool pool(3);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  // Every item waits until three threads are inside, so that the calling thread cannot do all of them.
  pool.run(3, [&](std::int64_t) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (std::chrono::steady_clock::now() < deadline) {
      const std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
      if (seen.size() == 3) return;
    }
  });
  EXPECT_EQ(seen.size(), 3U);
}

TEST(ThreadPool, ManySmallJobsAndSleepsBetween) {
  ThreadPool pool(4);
  std::int64_t expected = 0;
  std::atomic<std::int64_t> sum{0};
  for (int job = 0; job < 3000; ++job) {
    pool.run(8, [&](std::int64_t i) { sum += i; });
    expected += 28;
    if (job % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // workers go to sleep
  }
  EXPECT_EQ(sum, expected);
}

TEST(ThreadPool, NestedCallsRunWhereTheyAre) {
  ThreadPool pool(3);
  std::atomic<int> inner{0};
  pool.run(5, [&](std::int64_t) {
    const std::thread::id here = std::this_thread::get_id();
    pool.run(4, [&](std::int64_t) {
      EXPECT_EQ(std::this_thread::get_id(), here);
      ++inner;
    });
  });
  EXPECT_EQ(inner, 20);
}

TEST(ThreadPool, TheLowestFailureComesOut) {
  ThreadPool pool(4);
  for (int round = 0; round < 50; ++round) {
    try {
      pool.run(64, [&](std::int64_t i) {
        if (i % 16 == 3) throw std::runtime_error(std::to_string(i));
      });
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "3");
    }
    std::atomic<int> runs{0};
    pool.run(10, [&](std::int64_t) { ++runs; });  // and the pool still works
    EXPECT_EQ(runs, 10);
  }
}

TEST(ThreadPool, PollsBetweenItemsOnTheCallingThread) {
  ThreadPool pool(2);
  struct State {
    std::thread::id caller = std::this_thread::get_id();
    int polls = 0;
    int elsewhere = 0;
  } state;
  const PollHook poll{[](void* pointer) {
                        auto* s = static_cast<State*>(pointer);
                        ++s->polls;
                        s->elsewhere += std::this_thread::get_id() != s->caller;
                      },
                      &state};
  std::atomic<int> done{0};
  std::atomic<int> done_by_caller{0};
  const Stream stream{.device = nullptr, .pool = &pool, .poll = poll, .native = nullptr};
  parallel_for(stream, 200, [&](std::int64_t) {
    ++done;
    done_by_caller += std::this_thread::get_id() == state.caller;
  });
  EXPECT_EQ(done, 200);
  EXPECT_EQ(state.polls, done_by_caller);
  EXPECT_EQ(state.elsewhere, 0);
  // Without a pool as well.
  const int before = state.polls;
  parallel_for({.device = nullptr, .pool = nullptr, .poll = poll, .native = nullptr}, 5, [](std::int64_t) {});
  EXPECT_EQ(state.polls, before + 5);
}

TEST(ThreadPool, APollHookThatThrowsEndsTheJobLikeAnItem) {
  ThreadPool pool(3);
  const PollHook broken{[](void*) { throw std::runtime_error("connection lost"); }, nullptr};
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> inside{0};
    EXPECT_THROW(pool.run(
                     100,
                     [&](std::int64_t) {
                       ++inside;
                       std::this_thread::yield();
                       --inside;
                     },
                     broken),
                 std::runtime_error);
    EXPECT_EQ(inside, 0);  // nobody works on the job any more
    std::vector<std::atomic<int>> runs(50);
    pool.run(50, [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
    for (const auto& run : runs) ASSERT_EQ(run, 1);
  }
}

TEST(ThreadPool, TooManyThreadsIsAnErrorNotAnAbort) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs the address space";
#else
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit{std::size_t{1} << 30, std::size_t{1} << 30};  // room for about a hundred stacks
    setrlimit(RLIMIT_AS, &limit);
    try {
      const ThreadPool pool(4000);
    } catch (const Error& error) {
      _exit(error.kind() == ErrorKind::runtime ? 0 : 1);
    }
    _exit(2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
#endif
}

TEST(ThreadPool, SurvivesFork) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not follow threads that start after fork";
#else
  ThreadPool pool(3);
  std::atomic<int> before{0};
  pool.run(10, [&](std::int64_t) { ++before; });
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::mutex mutex;
    std::set<std::thread::id> seen;
    pool.run(3, [&](std::int64_t) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (std::chrono::steady_clock::now() < deadline) {
        const std::lock_guard lock(mutex);
        seen.insert(std::this_thread::get_id());
        if (seen.size() == 3) return;
      }
    });
    _exit(seen.size() == 3 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::atomic<int> after{0};
  pool.run(10, [&](std::int64_t) { ++after; });
  EXPECT_EQ(after, 10);
#endif
}

}  // namespace
}  // namespace headroom
