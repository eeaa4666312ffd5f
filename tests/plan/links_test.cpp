#include "headroom/plan/links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "headroom/plan/catalogue.h"

namespace headroom {
namespace {

TEST(Links, AreReadWithTheirUnits) {
  EXPECT_DOUBLE_EQ(parse_link_rate("400Gb/s"), 50e9);
  EXPECT_DOUBLE_EQ(parse_link_rate("12.5GB/s"), 12.5e9);
  EXPECT_DOUBLE_EQ(parse_link_rate("100Mb/s"), 12.5e6);
  EXPECT_DOUBLE_EQ(parse_link_rate("3MB/s"), 3e6);
}

TEST(Links, ThatAreNotUnderstoodAreRefusedByName) {
  const auto message = [](const auto& parse) -> std::string {
    try {
      static_cast<void>(parse());
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  for (const char* text : {"", "400", "Gb/s", "0GB/s", "-1GB/s", "1 GB/s", "400gb/s", "fastGb/s"}) {
    const std::string said = message([&] { return parse_link_rate(text); });
    EXPECT_THAT(said, testing::AllOf(testing::HasSubstr("--link"), testing::HasSubstr(text))) << text;
  }
}

TEST(Links, OfADeviceEndWithItsHost) {
  const DeviceDescription& h200 = find_in_catalogue("h200").device;
  EXPECT_DOUBLE_EQ(default_link(h200, 8).model.bytes_per_second, 450e9);
  EXPECT_DOUBLE_EQ(default_link(h200, 9).model.bytes_per_second, 50e9);
  EXPECT_THAT(default_link(h200, 8).name, testing::HasSubstr("NVLink"));
  EXPECT_THAT(default_link(find_in_catalogue("rtx-4090").device, 2).name, testing::HasSubstr("PCIe"));
  EXPECT_THAT(default_link(find_in_catalogue("rtx-4090").device, 16).name, testing::HasSubstr("Ethernet"));
}

}  // namespace
}  // namespace headroom
