// Devices that one can plan for without having them.
#pragma once

#include <span>
#include <string_view>

#include "headroom/core/device.h"
#include "headroom/plan/cost_model.h"

namespace headroom {

// What a kernel reached in steps of a 16-bit model.
struct MeasuredKernel {
  std::string_view kernel;
  KernelRate rate;
};

struct CatalogueEntry {
  std::string_view key;  // as people type it: "h200"
  DeviceDescription device;
  std::string_view source;  // of its rates
  std::span<const MeasuredKernel> kernels{};

  // The rates of its kernels where they were measured for the dtype, and of its description for the others.
  [[nodiscard]] CostModel costs(DType dtype) const;
};

[[nodiscard]] std::span<const CatalogueEntry> device_catalogue();

// The entry of a GPU that is here: of its name, or of its multiprocessors and memory. Null where there is
// none.
[[nodiscard]] const CatalogueEntry* find_in_catalogue(const DeviceDescription& device);

// Throws with the names that are accepted.
[[nodiscard]] const CatalogueEntry& find_in_catalogue(std::string_view key);

}  // namespace headroom
