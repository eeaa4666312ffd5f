// The GPUs on which the figures of these tests were measured.
#pragma once

#include "headroom/core/bytes.h"
#include "headroom/core/device.h"

namespace headroom {

inline DeviceDescription h200() {
  return {.kind = DeviceKind::cuda,
          .name = "NVIDIA H200",
          .cores = 132,
          .memory_bytes = 150'109'880'320,
          .compute_major = 9,
          .compute_minor = 0};
}

// A Pascal card of 8 GB.
inline DeviceDescription gtx1080() {
  return {.kind = DeviceKind::cuda,
          .name = "NVIDIA GeForce GTX 1080",
          .cores = 20,
          .memory_bytes = 8 * kGiB,
          .compute_major = 6,
          .compute_minor = 1};
}

inline double mebibytes(std::int64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(kMiB);
}
inline double gibibytes(std::int64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(kGiB);
}

}  // namespace headroom
