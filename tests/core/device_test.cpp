#include "headroom/core/device.h"

#include <gtest/gtest.h>

#include "headroom/core/error.h"

namespace headroom {
namespace {

DeviceDescription gpu(const char* name, int major, int minor) {
  return {.kind = DeviceKind::cuda, .name = name, .compute_major = major, .compute_minor = minor};
}

TEST(Device, ParsesAndPrints) {
  EXPECT_EQ(parse_device("cpu"), (Device{DeviceKind::cpu}));
  EXPECT_EQ(parse_device("cuda"), (Device{DeviceKind::cuda, 0}));
  EXPECT_EQ(parse_device("cuda:3"), (Device{DeviceKind::cuda, 3}));
  EXPECT_EQ(to_string(parse_device("cuda:3")), "cuda:3");
  EXPECT_EQ(to_string(Device{DeviceKind::cpu, 0, true}), "phantom cpu");
  for (const char* text : {"", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:1x", "cuda:99999999999", "cuda: 1",
                           "cuda:01", "cuda:0x1", "cpu:0"}) {
    EXPECT_THROW(static_cast<void>(parse_device(text)), Error) << text;
  }
}

TEST(Device, PascalDefaultsToF32AndWarnsOfF16) {
  for (const DeviceDescription& pascal :
       {gpu("P100", 6, 0), gpu("GTX 1080", 6, 1), gpu("Jetson TX2", 6, 2)}) {
    EXPECT_EQ(default_dtype(pascal).dtype, DType::f32) << pascal.name;
    ASSERT_TRUE(dtype_warning(pascal, DType::f16)) << pascal.name;
    EXPECT_TRUE(dtype_warning(pascal, DType::bf16)) << pascal.name;
    EXPECT_FALSE(dtype_warning(pascal, DType::f32)) << pascal.name;
  }
  // The reason is the chip's own: 1/64 rate on 6.1 and 6.2, conversions and overflow on 6.0.
  EXPECT_NE(dtype_warning(gpu("GTX 1080", 6, 1), DType::f16)->find("1/64"), std::string::npos);
  EXPECT_NE(dtype_warning(gpu("Jetson TX2", 6, 2), DType::f16)->find("1/64"), std::string::npos);
  EXPECT_EQ(dtype_warning(gpu("P100", 6, 0), DType::f16)->find("1/64"), std::string::npos);
  EXPECT_NE(dtype_warning(gpu("P100", 6, 0), DType::f16)->find("overflow"), std::string::npos);
}

TEST(Device, DefaultFollowsTheTensorCores) {
  EXPECT_EQ(default_dtype(gpu("V100", 7, 0)).dtype, DType::f16);
  EXPECT_EQ(default_dtype(gpu("T4", 7, 5)).dtype, DType::f16);
  EXPECT_TRUE(dtype_warning(gpu("T4", 7, 5), DType::bf16));
  for (const DeviceDescription& device : {gpu("A100", 8, 0), gpu("H200", 9, 0), gpu("B200", 10, 0)}) {
    EXPECT_EQ(default_dtype(device).dtype, DType::bf16);
    EXPECT_FALSE(dtype_warning(device, DType::f16));
    EXPECT_FALSE(dtype_warning(device, DType::bf16));
  }
  EXPECT_EQ(default_dtype(gpu("Titan X", 5, 2)).dtype, DType::f32);
  EXPECT_TRUE(dtype_warning(gpu("Titan X", 5, 2), DType::f16));
  const DeviceDescription cpu{.kind = DeviceKind::cpu, .name = "CPU", .simd = SimdLevel::avx512};
  EXPECT_EQ(default_dtype(cpu).dtype, DType::f32);
  EXPECT_NE(default_dtype(cpu).reason.find("avx512"), std::string::npos);
  EXPECT_FALSE(dtype_warning(cpu, DType::f32));
  for (const DType dtype : {DType::bf16, DType::f16})
    EXPECT_NE(dtype_warning(cpu, dtype)->find("widened to f32"), std::string::npos);
}

}  // namespace
}  // namespace headroom
