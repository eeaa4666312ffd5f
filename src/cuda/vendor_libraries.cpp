#include "cuda/vendor_libraries.h"

#include <cstddef>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>

#if __has_include(<nvtx3/nvToolsExtMemCudaRt.h>)  // since CUDA 12
#include <nvtx3/nvToolsExtMemCudaRt.h>
#define HEADROOM_MEMORY_TOOL 1
#endif

#include "headroom/core/error.h"

namespace headroom {

void check_cublas(cublasStatus_t code, const char* call, std::source_location where) {
  if (code == CUBLAS_STATUS_SUCCESS) return;
  throw Error(code == CUBLAS_STATUS_ALLOC_FAILED ? ErrorKind::memory : ErrorKind::runtime,
              fmt::format("{}: {}", call, cublasLtGetStatusString(code)), where);
}

VendorLibraries::VendorLibraries() {
  check_cublas(cublasLtCreate(&cublas_lt_), "cublasLtCreate");
#ifdef HEADROOM_MEMORY_TOOL
  // A tool that watches memory brings this variable; it may give no domain, and takes marks all the same.
  watched_ = std::getenv("NVTX_INJECTION64_PATH") != nullptr;
  if (watched_) domain_ = nvtxDomainCreateA("headroom");
#endif
}

VendorLibraries::~VendorLibraries() {
#ifdef HEADROOM_MEMORY_TOOL
  if (domain_ != nullptr) nvtxDomainDestroy(domain_);
#endif
  cublasLtDestroy(cublas_lt_);
}

void VendorLibraries::mark_written([[maybe_unused]] const Rows& rows,
                                   [[maybe_unused]] cudaStream_t stream) const {
#ifdef HEADROOM_MEMORY_TOOL
  if (!watched_) return;
  const bool whole = rows.stride_bytes == rows.row_bytes;
  const std::int64_t count = whole ? 1 : rows.rows;
  const auto bytes = static_cast<std::size_t>(whole ? rows.rows * rows.row_bytes : rows.row_bytes);
  std::vector<nvtxMemVirtualRangeDesc_t> ranges;
  for (std::int64_t i = 0; i < count; ++i)
    ranges.push_back({bytes, static_cast<const std::byte*>(rows.first) + i * rows.stride_bytes});
  nvtxMemMarkInitializedBatch_t batch{};
  batch.extCompatID = NVTX_EXT_COMPATID_MEM;
  batch.structSize = sizeof(batch);
  batch.regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
  batch.regionDescCount = ranges.size();
  batch.regionDescElementSize = sizeof(ranges.front());
  batch.regionDescElements = ranges.data();
  nvtxMemCudaMarkInitialized(domain_, stream, 0, &batch);
#endif
}

}  // namespace headroom
