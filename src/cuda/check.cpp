#include "cuda/check.h"

#include "headroom/core/error.h"

namespace headroom {

void check_cuda(cudaError_t code, const char* call, std::source_location where) {
  if (code == cudaSuccess) return;
  const ErrorKind kind = code == cudaErrorMemoryAllocation ? ErrorKind::memory : ErrorKind::runtime;
  throw Error(kind, fmt::format("{} failed: {} ({})", call, cudaGetErrorString(code), cudaGetErrorName(code)),
              where);
}

}  // namespace headroom
