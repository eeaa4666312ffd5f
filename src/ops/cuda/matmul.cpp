// The product through cuBLASLt, which has matrices column by column: our C, row by row, is its C^T, so it
// makes C^T <- B^T A^T. Sums are f32 for every dtype, without TF32. Of the algorithms that cuBLASLt knows,
// those are left out that add partial sums in 16 bits or in the order in which they arrive. The choice is a
// rule, not a measurement, so that every run has the same bits.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <bit>

#include "cuda/check.h"
#include "cuda/vendor_libraries.h"
#include "headroom/core/error.h"
#include "ops/matmul.h"

namespace headroom {
namespace {

using Matrix = VendorLibraries::Matrix;
using ProductKind = VendorLibraries::ProductKind;

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    default: return CUDA_R_32F;
  }
}

std::int64_t alignment_of(const void* data) {
  constexpr int kMostBits = 8;  // no kernel asks for more than 256 bytes
  return std::int64_t{1} << std::min(std::countr_zero(reinterpret_cast<std::uintptr_t>(data)), kMostBits);
}

// The transpose of a view, which is not transposed where its rows are contiguous.
Matrix transpose_of(const TensorView& view) {
  const bool by_rows = view.stride(1) == 1 || view.extent(1) == 1;
  const int across = by_rows ? 0 : 1;  // the dimension with a stride
  const std::int64_t length = view.extent(1 - across);
  const std::int64_t count = view.extent(across);
  check(count == 1 || view.stride(across) >= length,
        "a matrix of shape {} with strides {} and {} overlaps itself; a product on a GPU does not take it",
        view.shape(), view.stride(0), view.stride(1));
  return {.rows = length,
          .columns = count,
          .stride = count == 1 ? length : view.stride(across),
          .dtype = view.dtype(),
          .transposed = !by_rows,
          .alignment = alignment_of(view.raw())};
}

cublasLtMatrixLayoutOpaque_t layout_of(const Matrix& matrix) {
  cublasLtMatrixLayoutOpaque_t layout;
  check_cublas(
      cublasLtMatrixLayoutInit(&layout, type_of(matrix.dtype), static_cast<std::uint64_t>(matrix.rows),
                               static_cast<std::uint64_t>(matrix.columns), matrix.stride),
      "cublasLtMatrixLayoutInit");
  return layout;
}

// A product as cuBLASLt describes it, on the stack.
struct Description {
  explicit Description(const ProductKind& kind)
      : left(layout_of(kind.left)),
        right(layout_of(kind.right)),
        addend(layout_of(kind.addend)),
        result(layout_of(kind.result)) {
    check_cublas(cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescInit");
    set(CUBLASLT_MATMUL_DESC_TRANSA, kind.left.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, kind.right.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  }

  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t left;
  cublasLtMatrixLayoutOpaque_t right;
  cublasLtMatrixLayoutOpaque_t addend;
  cublasLtMatrixLayoutOpaque_t result;

 private:
  void set(cublasLtMatmulDescAttributes_t attribute, cublasOperation_t operation) {
    check_cublas(cublasLtMatmulDescSetAttribute(&product, attribute, &operation, sizeof(operation)),
                 "cublasLtMatmulDescSetAttribute");
  }
};

// On Hopper, tiles of which an SM holds two: one is written while the other is summed (docs/kernels/ops.md).
bool leaves_room_for_another(const cublasLtMatmulAlgo_t& algorithm) {
  constexpr cublasLtMatmulTile_t kTiles[] = {
    CUBLASLT_MATMUL_TILE_128x128,
    CUBLASLT_MATMUL_TILE_128x160,
    CUBLASLT_MATMUL_TILE_160x128,
#if CUBLAS_VERSION >= 120600  // which named the others
    CUBLASLT_MATMUL_TILE_128x136,
    CUBLASLT_MATMUL_TILE_128x144,
    CUBLASLT_MATMUL_TILE_128x152,
    CUBLASLT_MATMUL_TILE_128x168,
    CUBLASLT_MATMUL_TILE_128x176,
    CUBLASLT_MATMUL_TILE_136x128,
    CUBLASLT_MATMUL_TILE_144x128,
    CUBLASLT_MATMUL_TILE_152x128,
    CUBLASLT_MATMUL_TILE_168x128,
    CUBLASLT_MATMUL_TILE_176x128,
#endif
  };
  std::uint32_t tile = 0;
  return cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof(tile),
                                              nullptr) == CUBLAS_STATUS_SUCCESS &&
         std::ranges::find(kTiles, static_cast<cublasLtMatmulTile_t>(tile)) != std::end(kTiles);
}

cublasLtMatmulAlgo_t choose(const ProductKind& kind, Description& description, cublasLtHandle_t handle,
                            const DeviceDescription& device) {
  cublasLtMatmulPreferenceOpaque_t preference;
  check_cublas(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(kind.workspace_bytes));
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(kind.left.alignment));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(kind.right.alignment));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(kind.addend.alignment));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(kind.result.alignment));
  std::array<cublasLtMatmulHeuristicResult_t, 8> found{};
  int count = 0;
  const cublasStatus_t answer = cublasLtMatmulAlgoGetHeuristic(
      handle, &description.product, &description.left, &description.right, &description.addend,
      &description.result, &preference, static_cast<int>(found.size()), found.data(), &count);
  if (answer != CUBLAS_STATUS_NOT_SUPPORTED) check_cublas(answer, "cublasLtMatmulAlgoGetHeuristic");
  if (count == 0) {
    fail(ErrorKind::runtime,
         "cuBLASLt has no algorithm for a product of {} matrices that gives {} x {} of {}",
         name(kind.left.dtype), kind.result.columns, kind.result.rows, name(kind.result.dtype));
  }
  constexpr float kLeastWaves = 1.5F;  // with fewer, the GPU waits for those that have one tile more
  if (device.compute_major == 9 && kind.left.dtype != DType::f32) {
    for (int i = 0; i < count; ++i) {
      const cublasLtMatmulHeuristicResult_t& candidate = found[static_cast<std::size_t>(i)];
      if (candidate.state == CUBLAS_STATUS_SUCCESS && candidate.wavesCount >= kLeastWaves &&
          leaves_room_for_another(candidate.algo))
        return candidate.algo;
    }
  }
  return found.front().algo;
}

}  // namespace

void product_cuda(const Product& product, TensorView workspace, const Stream& stream) {
  const auto& [a, b, c, add, addend] = product;
  check_product(a, b, c);
  check(stream.libraries != nullptr, "a product on a GPU needs a stream with the libraries of its backend");
  if (c.elements() == 0) return;
  const auto native = static_cast<cudaStream_t>(stream.native);
  const bool adds = add || addend.elements() > 0;
  const TensorView& added = addend.elements() > 0 ? addend : c;
  if (a.extent(1) == 0) {
    check(addend.elements() == 0, "a product of no depth is added to nothing on a GPU");
    if (add) return;
    const Matrix result = transpose_of(c);
    const auto element_bytes = static_cast<std::size_t>(size_bytes(c.dtype()));
    check_cuda(cudaMemset2DAsync(c.raw(), static_cast<std::size_t>(result.stride) * element_bytes, 0,
                                 static_cast<std::size_t>(result.rows) * element_bytes,
                                 static_cast<std::size_t>(result.columns), native),
               "cudaMemset2DAsync");
    return;
  }
  const ProductKind kind{.left = transpose_of(b),
                         .right = transpose_of(a),
                         .addend = transpose_of(added),
                         .result = transpose_of(c),
                         .workspace_bytes = workspace.bytes()};
  Description description(kind);
  cublasLtHandle_t handle = stream.libraries->cublas_lt();
  const cublasLtMatmulAlgo_t& algorithm = stream.libraries->product_algorithm(
      kind, [&] { return choose(kind, description, handle, *stream.device); });
  const float alpha = 1;
  const float beta = adds ? 1 : 0;
  check_cublas(cublasLtMatmul(handle, &description.product, &alpha, b.raw(), &description.left, a.raw(),
                              &description.right, &beta, added.raw(), &description.addend, c.raw(),
                              &description.result, &algorithm, workspace.raw(),
                              static_cast<std::size_t>(workspace.bytes()), native),
               "cublasLtMatmul");
  const std::int64_t element_bytes = size_bytes(c.dtype());
  stream.libraries->mark_written({.first = c.raw(),
                                  .row_bytes = kind.result.rows * element_bytes,
                                  .rows = kind.result.columns,
                                  .stride_bytes = kind.result.stride * element_bytes},
                                 native);
}

}  // namespace headroom
