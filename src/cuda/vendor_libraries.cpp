#include "cuda/vendor_libraries.h"

#include <fmt/format.h>

#include "headroom/core/error.h"

namespace headroom {

void check_cublas(cublasStatus_t code, const char* call, std::source_location where) {
  if (code == CUBLAS_STATUS_SUCCESS) return;
  throw Error(code == CUBLAS_STATUS_ALLOC_FAILED ? ErrorKind::memory : ErrorKind::runtime,
              fmt::format("{}: {}", call, cublasLtGetStatusString(code)), where);
}

VendorLibraries::VendorLibraries() {
  check_cublas(cublasLtCreate(&cublas_lt_), "cublasLtCreate");
}

VendorLibraries::~VendorLibraries() {
  cublasLtDestroy(cublas_lt_);
}

}  // namespace headroom
