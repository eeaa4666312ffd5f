#include "headroom/cpu/cpu_backend.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "headroom/core/error.h"
#include "headroom/device.h"

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
  const MemoryStatus memory = cpu_memory();
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
  EXPECT_GT(memory.free_bytes, 0);
}

TEST(Devices, ListsTheCpuFirstAndOpensIt) {
  const DeviceList list = list_devices();
  ASSERT_FALSE(list.devices.empty());
  EXPECT_EQ(list.devices[0].device, (Device{DeviceKind::cpu}));
  EXPECT_EQ(list.devices.size() == 1, !list.no_cuda_reason.empty());
  EXPECT_EQ(open_backend({DeviceKind::cpu}, 1)->device(), (Device{DeviceKind::cpu}));
  EXPECT_EQ(default_budget(
                {.total_bytes = 1 << 30, .free_bytes = 1 << 29, .held_by_others_bytes = 0, .holders = {}}),
            (1 << 29) - kOutsideArenaBytes);
  EXPECT_EQ(default_budget({}), 0);
  try {
    static_cast<void>(open_backend({DeviceKind::cuda, 999}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_NE(std::string(error.what()).find("cuda:999"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("there is cpu"), std::string::npos);
  }
}

}  // namespace
}  // namespace headroom
