// The catalogue of devices, and what work costs on them.
#include "headroom/plan/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "headroom/core/bytes.h"
#include "headroom/core/error.h"
#include "headroom/plan/catalogue.h"

namespace headroom {
namespace {

TEST(Catalogue, NamesWhatItHas) {
  for (const CatalogueEntry& entry : device_catalogue()) {
    EXPECT_EQ(&find_in_catalogue(entry.key), &entry);
    EXPECT_GT(entry.device.memory_bytes, kGiB);
    EXPECT_GT(entry.device.f32_flops, 0);
    EXPECT_GT(entry.device.memory_bytes_per_second, 0);
  }
  EXPECT_EQ(default_dtype(find_in_catalogue("gtx-1080").device).dtype, DType::f32);
  // The same kind of source: an H100 is thought to reach what an H200 does of its data sheet.
  const DeviceDescription& h100 = find_in_catalogue("h100").device;
  const DeviceDescription& h200 = find_in_catalogue("h200").device;
  EXPECT_DOUBLE_EQ(h100.half_flops, h200.half_flops);  // theirs are the same there
  EXPECT_NEAR(h100.memory_bytes_per_second / h200.memory_bytes_per_second, 3350.0 / 4800, 1e-12);
  EXPECT_EQ(default_dtype(find_in_catalogue("h200").device).dtype, DType::bf16);
  EXPECT_TRUE(dtype_warning(find_in_catalogue("gtx-1080").device, DType::f16).has_value());
  try {
    (void)find_in_catalogue("h300");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("no device 'h300'; accepted: cpu, a100-40"));
  }
}

// Names as drivers give them.
TEST(Catalogue, FindsAGpuThatIsHere) {
  const auto key_of = [](std::string name, int cores, double gib, int major, int minor) -> std::string_view {
    DeviceDescription gpu;
    gpu.kind = DeviceKind::cuda;
    gpu.name = std::move(name);
    gpu.cores = cores;
    gpu.memory_bytes = static_cast<std::int64_t>(gib * static_cast<double>(kGiB));
    gpu.compute_major = major;
    gpu.compute_minor = minor;
    const CatalogueEntry* entry = find_in_catalogue(gpu);
    return entry == nullptr ? "none" : entry->key;
  };
  EXPECT_EQ(key_of("NVIDIA H200", 132, 139.8, 9, 0), "h200");
  EXPECT_EQ(key_of("NVIDIA H100 80GB HBM3", 132, 79.1, 9, 0), "h100");
  EXPECT_EQ(key_of("NVIDIA A100-SXM4-80GB", 108, 79.3, 8, 0), "a100-80");
  EXPECT_EQ(key_of("NVIDIA A100-PCIE-40GB", 108, 39.4, 8, 0), "a100-40");
  EXPECT_EQ(key_of("Tesla P100-PCIE-16GB", 56, 15.9, 6, 0), "p100");
  EXPECT_EQ(key_of("NVIDIA L40S", 142, 44.5, 8, 9), "none");
}

// A GPU that nobody has measured is no CPU with as many cores.
TEST(CostModel, AnUnknownGpuIsAGpu) {
  DeviceDescription gpu;
  gpu.kind = DeviceKind::cuda;
  gpu.cores = 142;
  gpu.compute_major = 8;
  const Work work{.kernel = "matmul", .flops = 1e15};
  EXPECT_LT(CostModel(gpu, DType::bf16).seconds(work), 20);
  EXPECT_GT(CostModel(gpu, DType::f32).seconds(work), 20);
  gpu.compute_major = 6;  // without tensor cores
  EXPECT_EQ(CostModel(gpu, DType::f16).seconds(work), CostModel(gpu, DType::f32).seconds(work));
}

TEST(CostModel, FitsALine) {
  const std::vector<MeasuredWork> runs = {{1e6, 2e-3 + 1e-3}, {4e6, 8e-3 + 1e-3}, {9e6, 18e-3 + 1e-3}};
  const FittedLine line = fit_line(runs);
  EXPECT_NEAR(line.per_second, 5e8, 1);
  EXPECT_NEAR(line.start_seconds, 1e-3, 1e-9);
  const std::vector<MeasuredWork> one = {{1e6, 2e-3}};
  EXPECT_NEAR(fit_line(one).per_second, 5e8, 1);
  EXPECT_EQ(fit_line({}).per_second, 0);
  // A line that would start below zero goes through zero.
  const std::vector<MeasuredWork> steep = {{1e6, 1e-3}, {2e6, 4e-3}};
  EXPECT_EQ(fit_line(steep).start_seconds, 0);
}

// Runs that were disturbed take longer by different times. The line has their mean.
TEST(CostModel, FitsTheMeanOfRunsThatDiffer) {
  const std::vector<MeasuredWork> runs = {{1e6, 1e-3}, {1e6, 3e-3}, {4e6, 4e-3}, {4e6, 12e-3}};
  const FittedLine line = fit_line(runs);
  EXPECT_NEAR(line.start_seconds + 1e6 / line.per_second, 2e-3, 1e-6);
  EXPECT_NEAR(line.start_seconds + 4e6 / line.per_second, 8e-3, 1e-6);
}

TEST(CostModel, FlopsAndBytesCount) {
  CostModel costs(find_in_catalogue("h200").device, DType::bf16);
  costs.set("kernel", {.flops_per_second = 1e9, .bytes_per_second = 1e6, .start_seconds = 0.5});
  EXPECT_DOUBLE_EQ(costs.seconds({.kernel = "kernel", .flops = 3e9, .bytes = 1e6}), 4.5);
  EXPECT_DOUBLE_EQ(costs.seconds({.kernel = "kernel", .flops = 1e9, .bytes = 4e6}), 5.5);
  EXPECT_GT(costs.seconds({.kernel = "unheard of", .flops = 1e12}), 1e12 / 797e12);
}

TEST(CostModel, CalibratesToWhatRunsTook) {
  CostModel costs(DeviceDescription{}, DType::f32);
  const std::vector<WorkRecord> records = {
      {.work = {.kernel = "product", .flops = 1e9, .bytes = 1}, .runs = 2, .seconds = 0.02},
      {.work = {.kernel = "norm", .bytes = 1e6}, .runs = 1, .seconds = 1e-3},
      {.work = {.kind = WorkKind::host, .kernel = "host"}, .runs = 1, .seconds = 7}};
  calibrate(costs, records);
  EXPECT_NEAR(costs.seconds({.kernel = "product", .flops = 2e9}), 0.02, 1e-9);
  EXPECT_NEAR(costs.seconds({.kernel = "norm", .bytes = 3e6}), 3e-3, 1e-9);
  EXPECT_FALSE(costs.kernels().contains("host"));
}

}  // namespace
}  // namespace headroom
