#include "headroom/device/devices.h"

#include <gtest/gtest.h>

#include "headroom/core/bytes.h"
#include "headroom/core/error.h"

namespace headroom {
namespace {

TEST(Devices, ListsTheCpuFirstAndOpensIt) {
  const DeviceList list = list_devices();
  ASSERT_FALSE(list.devices.empty());
  EXPECT_EQ(list.devices[0].device, (Device{DeviceKind::cpu}));
  EXPECT_EQ(list.devices.size() == 1, !list.no_cuda_reason.empty());
  EXPECT_EQ(open_backend({DeviceKind::cpu}, 1)->device(), (Device{DeviceKind::cpu}));
  for (const int threads : {1, 3}) {
    EXPECT_EQ(open_backend({DeviceKind::cpu}, threads)->description().cores, threads);
  }
  try {
    static_cast<void>(open_backend({DeviceKind::cuda, 999}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_NE(std::string(error.what()).find("cuda:999"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("there is cpu"), std::string::npos);
  }
}

MemoryStatus with_free(std::int64_t bytes) {
  MemoryStatus memory;
  memory.free_bytes = bytes;
  return memory;
}

TEST(Devices, WithoutABudgetItIsWhatIsFreeLessWhatLiesOutsideTheArena) {
  ListedDevice device{.device = {DeviceKind::cpu}, .description = {}, .memory = with_free(kGiB)};
  EXPECT_EQ(device_budget(device, {}).bytes, kGiB - kOutsideArenaBytes);
  EXPECT_EQ(device_budget(device, 5).bytes, 5);
  EXPECT_EQ(device_budget(device, 5).arithmetic, "");
  device.device.kind = DeviceKind::cuda;
  EXPECT_EQ(device_budget(device, {}).bytes, kGiB / 2);
  EXPECT_EQ(device_budget(device, {}, 2).bytes, 0);  // each loads kernels of its own
  EXPECT_EQ(device_budget(device, {}).arithmetic,
            "1 GiB free less 512 MiB for kernels that are loaded at their first use");
  device.memory.free_bytes = kMiB;
  EXPECT_EQ(device_budget(device, {}).bytes, 0);
  EXPECT_EQ(host_budget(with_free(5 * kGiB), {}).bytes, kGiB);
  EXPECT_EQ(host_budget(with_free(kGiB), {}).bytes, 0);
  EXPECT_EQ(host_budget({}, 7).bytes, 7);
}

TEST(Devices, RanksTakeThemInTurn) {
  const std::vector<Device> devices = {{DeviceKind::cuda, 0}, {DeviceKind::cuda, 1}, {DeviceKind::cuda, 1}};
  EXPECT_EQ(device_of_rank(devices, 4).index, 1);
  EXPECT_EQ(ranks_on_device(devices, 0, 3), 1);
  EXPECT_EQ(ranks_on_device(devices, 1, 3), 2);
  EXPECT_EQ(ranks_on_device(devices, 0, 4), 2);
  EXPECT_EQ(ranks_on_device({{DeviceKind::cpu, 0}}, 2, 3), 3);
}

}  // namespace
}  // namespace headroom
