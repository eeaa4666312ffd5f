#include "headroom/plan/catalogue.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "headroom/core/bytes.h"
#include "headroom/core/error.h"

namespace headroom {
namespace {

struct Rates {
  double f32_tflops;
  double half_tflops;  // dense, f32 accumulation
  double bandwidth_gbs;
};

// Hopper: what one H200 reached, and as much of their data sheets for the others.
constexpr Rates kH100Sheet{67, 989, 3350};
constexpr Rates kH200Sheet{67, 989, 4800};
constexpr Rates kH200Measured{51, 797, 4300};
constexpr Rates as_the_h200_reaches(const Rates& sheet) {
  return {sheet.f32_tflops * kH200Measured.f32_tflops / kH200Sheet.f32_tflops,
          sheet.half_tflops * kH200Measured.half_tflops / kH200Sheet.half_tflops,
          sheet.bandwidth_gbs * kH200Measured.bandwidth_gbs / kH200Sheet.bandwidth_gbs};
}

// What kernels reached on that H200 in steps of Qwen3-4B in bf16 at 8,192 and 32,768 tokens
// (docs/results.md). An H100 multiplies as fast and moves bytes at its own bandwidth.
constexpr std::array kH200Kernels = {MeasuredKernel{"adamw", {0, 3.92e12, 6.1e-6}},
                                     MeasuredKernel{"attention", {606e12, 3.44e12, 0}},
                                     MeasuredKernel{"attention backward", {488e12, 3.44e12, 790e-6}},
                                     MeasuredKernel{"embedding", {0, 4.03e12, 17e-6}},
                                     MeasuredKernel{"embedding backward", {0, 1.89e12, 116e-6}},
                                     MeasuredKernel{"gradient norm", {0, 4.58e12, 0}},
                                     MeasuredKernel{"loss backward", {745e12, 3.44e12, 0}},
                                     MeasuredKernel{"mlp", {770e12, 3.44e12, 0}},
                                     MeasuredKernel{"mlp backward", {796e12, 3.44e12, 2.3e-6}},
                                     MeasuredKernel{"norm", {0, 3.07e12, 3e-6}},
                                     MeasuredKernel{"norm and rope", {0, 2.94e12, 9.9e-6}},
                                     MeasuredKernel{"norm and rope backward", {0, 3.07e12, 23e-6}},
                                     MeasuredKernel{"norm backward", {0, 2.44e12, 21e-6}},
                                     MeasuredKernel{"product", {932e12, 3.44e12, 2.4e-6}},
                                     MeasuredKernel{"zero", {0, 4.59e12, 0}}};
constexpr auto kH100Kernels = [] {
  auto kernels = kH200Kernels;
  for (MeasuredKernel& measured : kernels) {
    measured.rate.bytes_per_second *= kH100Sheet.bandwidth_gbs / kH200Sheet.bandwidth_gbs;
  }
  return kernels;
}();

// What copies from or to pinned memory reach over sixteen lanes: 55 GB/s was seen of generation 5's 64.
constexpr double kPcie3 = 12e9;
constexpr double kPcie4 = 25e9;
constexpr double kPcie5 = 55e9;

struct Gpu {
  std::string_view name;
  int multiprocessors;
  double memory_gib;  // what the driver shows, before its own share
  double l2_mib;
  int major;
  int minor;
  Rates rates;
  double link_bytes_per_second;
  RateSource source = RateSource::published;
};

DeviceDescription describe(const Gpu& gpu) {
  DeviceDescription device;
  device.kind = DeviceKind::cuda;
  device.name = gpu.name;
  device.cores = gpu.multiprocessors;
  device.memory_bytes = static_cast<std::int64_t>(gpu.memory_gib * static_cast<double>(kGiB));
  device.l2_bytes = static_cast<std::int64_t>(gpu.l2_mib * static_cast<double>(kMiB));
  device.compute_major = gpu.major;
  device.compute_minor = gpu.minor;
  device.rate_source = gpu.source;
  device.f32_flops = gpu.rates.f32_tflops * 1e12;
  device.half_flops = gpu.rates.half_tflops * 1e12;
  device.memory_bytes_per_second = gpu.rates.bandwidth_gbs * 1e9;
  device.host_link_bytes_per_second = gpu.link_bytes_per_second;
  return device;
}

}  // namespace

std::span<const CatalogueEntry> device_catalogue() {
  constexpr std::string_view kPublished = "published by its maker";
  constexpr std::string_view kMeasured =
      "measured: kernels of a step in 16 bits, an 8192^3 matrix product, a device copy";
  constexpr std::string_view kScaled = "an H200's, scaled to its memory bandwidth";
  static const std::array kEntries = {
      CatalogueEntry{"a100-40",
                     describe({"NVIDIA A100 40GB", 108, 39.4, 40, 8, 0, {19.5, 312, 1555}, kPcie4}),
                     kPublished},
      CatalogueEntry{"a100-80",
                     describe({"NVIDIA A100 80GB", 108, 79.2, 40, 8, 0, {19.5, 312, 2039}, kPcie4}),
                     kPublished},
      CatalogueEntry{"h100",
                     describe({"NVIDIA H100 80GB", 132, 79.1, 50, 9, 0, as_the_h200_reaches(kH100Sheet),
                               kPcie5, RateSource::scaled}),
                     kScaled, kH100Kernels},
      CatalogueEntry{
          "h200",
          describe({"NVIDIA H200", 132, 139.8, 50, 9, 0, kH200Measured, kPcie5, RateSource::measured}),
          kMeasured, kH200Kernels},
      CatalogueEntry{"b200", describe({"NVIDIA B200", 148, 178.4, 126, 10, 0, {80, 2250, 8000}, kPcie5}),
                     kPublished},
      CatalogueEntry{"rtx-3090",
                     describe({"NVIDIA GeForce RTX 3090", 82, 23.7, 6, 8, 6, {35.6, 71, 936}, kPcie4}),
                     kPublished},
      CatalogueEntry{"rtx-4090",
                     describe({"NVIDIA GeForce RTX 4090", 128, 23.5, 72, 8, 9, {82.6, 165, 1008}, kPcie4}),
                     kPublished},
      CatalogueEntry{"p100", describe({"NVIDIA Tesla P100", 56, 15.9, 4, 6, 0, {9.3, 18.7, 732}, kPcie3}),
                     kPublished},
      CatalogueEntry{"gtx-1080",
                     describe({"NVIDIA GeForce GTX 1080", 20, 7.9, 2, 6, 1, {8.9, 0.14, 320}, kPcie3}),
                     kPublished},
  };
  return kEntries;
}

CostModel CatalogueEntry::costs(DType dtype) const {
  CostModel model(device, dtype);
  if (size_bytes(dtype) != 2) return model;
  for (const MeasuredKernel& measured : kernels) model.set(measured.kernel, measured.rate);
  return model;
}

const CatalogueEntry* find_in_catalogue(const DeviceDescription& device) {
  const auto entries = device_catalogue();
  // Drivers add to the name what kind of memory or board it is, in front of its size or behind. So what has
  // the same multiprocessors, and about as much memory, is the same.
  const auto same = [&](const CatalogueEntry& entry) {
    const DeviceDescription& known = entry.device;
    if (device.name.starts_with(known.name)) return true;
    const double ratio = static_cast<double>(device.memory_bytes) / static_cast<double>(known.memory_bytes);
    return device.compute_major == known.compute_major && device.compute_minor == known.compute_minor &&
           device.cores == known.cores && ratio > 0.93 && ratio < 1.07;
  };
  const auto found = std::ranges::find_if(entries, same);
  return found == entries.end() ? nullptr : &*found;
}

const CatalogueEntry& find_in_catalogue(std::string_view key) {
  const auto entries = device_catalogue();
  const auto found = std::ranges::find(entries, key, &CatalogueEntry::key);
  if (found != entries.end()) return *found;
  std::vector<std::string_view> keys;
  for (const CatalogueEntry& entry : entries) keys.push_back(entry.key);
  fail(ErrorKind::input, "no device '{}'; accepted: cpu, {}", key, fmt::join(keys, ", "));
}

}  // namespace headroom
