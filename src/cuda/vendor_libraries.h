// The handles of NVIDIA's libraries on one GPU, and the algorithms chosen from them. A backend makes one
// before its first run, and a kernel reaches it through its Stream. An algorithm is chosen at the first call
// of its kind; after that nothing here allocates.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <map>
#include <source_location>

#include "headroom/core/dtype.h"

struct nvtxDomainRegistration_st;

namespace headroom {

void check_cublas(cublasStatus_t code, const char* call,
                  std::source_location where = std::source_location::current());

class VendorLibraries {
 public:
  VendorLibraries();  // on the current device
  VendorLibraries(const VendorLibraries&) = delete;
  VendorLibraries& operator=(const VendorLibraries&) = delete;
  ~VendorLibraries();

  [[nodiscard]] cublasLtHandle_t cublas_lt() const { return cublas_lt_; }

  // A matrix as cuBLASLt has it, column by column.
  struct Matrix {
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    std::int64_t stride = 0;  // from column to column
    DType dtype = DType::f32;
    bool transposed = false;
    std::int64_t alignment = 0;  // bytes

    auto operator<=>(const Matrix&) const = default;
  };
  // What the algorithm of a product depends on.
  struct ProductKind {
    Matrix left;
    Matrix right;
    Matrix addend;  // the result itself where there is none
    Matrix result;
    std::int64_t workspace_bytes = 0;

    auto operator<=>(const ProductKind&) const = default;
  };
  // The algorithm for the kind; choose() makes it at the first call.
  template <class Choose>
  [[nodiscard]] const cublasLtMatmulAlgo_t& product_algorithm(const ProductKind& kind, const Choose& choose) {
    const auto found = product_algorithms_.find(kind);
    return found != product_algorithms_.end() ? found->second
                                              : product_algorithms_.emplace(kind, choose()).first->second;
  }

  // Rows of memory.
  struct Rows {
    const void* first = nullptr;
    std::int64_t row_bytes = 0;
    std::int64_t rows = 1;
    std::int64_t stride_bytes = 0;
  };
  // Tells a tool that watches memory (compute-sanitizer's initcheck) that work on the stream writes these
  // rows. Such a tool does not see what the copy engine writes. Does nothing where no tool is attached.
  void mark_written(const Rows& rows, cudaStream_t stream) const;

 private:
  cublasLtHandle_t cublas_lt_ = nullptr;
  bool watched_ = false;  // by such a tool
  nvtxDomainRegistration_st* domain_ = nullptr;
  std::map<ProductKind, cublasLtMatmulAlgo_t> product_algorithms_;
};

}  // namespace headroom
