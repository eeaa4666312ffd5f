#include "headroom/device/devices.h"

#include <gtest/gtest.h>

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
