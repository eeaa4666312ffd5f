#include "headroom/cpu/cpu_backend.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "headroom/core/memory_status.h"

namespace headroom {
namespace {

TEST(CpuBackend, SideStreamsRunInOrderAndLater) {
  CpuBackend backend(1);
  static std::atomic<bool> gate;
  static std::atomic<int> last;
  gate = false;
  last = -1;
  backend.submit(StreamId::copy, Task([](const Stream&) {
                   while (!gate) std::this_thread::yield();
                 }));
  // More tasks than the ring holds at once would block here, so stay below it until the gate opens.
  for (int i = 0; i < 50; ++i) {
    backend.submit(StreamId::copy, Task([i](const Stream&) {
                     EXPECT_EQ(last, i - 1);
                     last = i;
                   }));
  }
  EXPECT_EQ(last, -1);  // main was not held up
  backend.record(StreamId::copy, 0);
  gate = true;
  backend.wait(StreamId::main, 0);
  EXPECT_EQ(last, 49);
  for (int i = 50; i < 500; ++i) backend.submit(StreamId::copy, Task([i](const Stream&) { last = i; }));
  backend.synchronize();
  EXPECT_EQ(last, 499);
}

TEST(CpuBackend, OneSideStreamWaitsForAnother) {
  CpuBackend backend(1);
  static std::atomic<int> value;
  value = 0;
  backend.submit(StreamId::copy, Task([](const Stream&) {
                   std::this_thread::sleep_for(std::chrono::milliseconds(20));
                   value = 1;
                 }));
  backend.record(StreamId::copy, 0);
  backend.wait(StreamId::communication, 0);
  backend.submit(StreamId::communication, Task([](const Stream&) { value = value == 1 ? 2 : -1; }));
  backend.synchronize();
  EXPECT_EQ(value, 2);
}

TEST(CpuBackend, AFailureOnASideStreamComesOutAtTheWait) {
  CpuBackend backend(1);
  backend.submit(StreamId::copy, Task([](const Stream&) { throw std::runtime_error("disk on fire"); }));
  backend.record(StreamId::copy, 0);
  EXPECT_THROW(backend.wait(StreamId::main, 0), std::runtime_error);
  backend.synchronize();  // once
}

TEST(CpuBackend, DescribesThisMachine) {
  const DeviceDescription cpu = describe_cpu();
  EXPECT_EQ(cpu.kind, DeviceKind::cpu);
  EXPECT_FALSE(cpu.name.empty());
  EXPECT_GE(cpu.cores, 1);
  EXPECT_GT(cpu.memory_bytes, 0);
  const MemoryStatus memory = host_memory();
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
  EXPECT_GT(memory.free_bytes, 0);
}

TEST(CpuBackend, SynchronizeWaitsForEveryStreamEvenAfterAFailure) {
  CpuBackend backend(1);
  static std::atomic<bool> done;
  done = false;
  backend.submit(StreamId::copy, Task([](const Stream&) { throw std::runtime_error("disk on fire"); }));
  backend.submit(StreamId::communication, Task([](const Stream&) {
                   std::this_thread::sleep_for(std::chrono::milliseconds(30));
                   done = true;
                   throw std::runtime_error("network down");
                 }));
  EXPECT_THROW(backend.synchronize(), std::runtime_error);
  EXPECT_TRUE(done);
  backend.synchronize();  // both failures are out
}

TEST(CpuBackend, SideStreamsSurviveFork) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not follow threads that start after fork";
#else
  CpuBackend backend(2);
  // Both threads of the pool have been through a job: one that is still starting may hold a lock of a
  // sanitizer's, which would stay locked in the child.
  static std::barrier both(2);
  backend.submit(StreamId::main, Task([](const Stream& stream) {
                   parallel_for(stream, 2, [](std::int64_t) { both.arrive_and_wait(); });
                 }));
  backend.submit(StreamId::copy, Task([](const Stream&) {}));
  backend.synchronize();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a hang ends the child
    static std::atomic<int> ran;
    backend.submit(StreamId::copy, Task([](const Stream&) { ran = 1; }));
    backend.synchronize();
    backend.~CpuBackend();
    _exit(ran == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
#endif
}

TEST(CpuBackend, MainPollsBetweenItems) {
  CpuBackend backend(2);
  int polls = 0;
  backend.set_poll({[](void* count) { ++*static_cast<int*>(count); }, &polls});
  backend.submit(StreamId::main,
                 Task([](const Stream& stream) { parallel_for(stream, 100, [](std::int64_t) {}); }));
  EXPECT_GT(polls, 0);
  const int before = polls;
  backend.submit(StreamId::copy,
                 Task([](const Stream& stream) { parallel_for(stream, 100, [](std::int64_t) {}); }));
  backend.synchronize();
  EXPECT_EQ(polls, before);  // only the owner polls
}

}  // namespace
}  // namespace headroom
