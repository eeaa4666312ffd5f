// Devices that one can plan for without having them.
#pragma once

#include <span>
#include <string_view>

#include "headroom/core/device.h"

namespace headroom {

struct CatalogueEntry {
  std::string_view key;  // as people type it: "h200"
  DeviceDescription device;
  std::string_view source;  // of its rates
};

[[nodiscard]] std::span<const CatalogueEntry> device_catalogue();

// The entry of a device that is here, by its maker's name; null where there is none.
[[nodiscard]] const CatalogueEntry* find_in_catalogue(const DeviceDescription& device);

// Throws with the names that are accepted.
[[nodiscard]] const CatalogueEntry& find_in_catalogue(std::string_view key);

}  // namespace headroom
