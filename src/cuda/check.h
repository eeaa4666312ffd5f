// Every call of the CUDA runtime is checked, every launch too.
#pragma once

#include <cuda_runtime_api.h>

#include "headroom/core/error.h"

namespace headroom {

inline void check_cuda(cudaError_t code, const char* call,
                       std::source_location where = std::source_location::current()) {
  if (code == cudaSuccess) return;
  const ErrorKind kind = code == cudaErrorMemoryAllocation ? ErrorKind::memory : ErrorKind::runtime;
  throw Error(kind, fmt::format("{} failed: {} ({})", call, cudaGetErrorString(code), cudaGetErrorName(code)),
              where);
}

// After a launch: what the launch itself did wrong.
inline void check_launch(const char* kernel, std::source_location where = std::source_location::current()) {
  check_cuda(cudaGetLastError(), kernel, where);
}

}  // namespace headroom
