// Chunks of columns of the right operand are packed, by all threads; then the threads take items, tiles of C,
// that share them. What is packed is bounded, so the workspace is small whatever the sizes. A depth past
// kMaxDepth takes several passes; between them the sums stay f32, in C itself or, where C is 16-bit, in the
// workspace, a block of rows at a time.
#include "ops/matmul.h"

#include <algorithm>

#include "core/pieces.h"
#include "cpu/levels.h"
#include "cpu/workers.h"
#include "headroom/ops/matmul.h"
#include "ops/cpu/matmul_kernels.h"
#include "ops/cpu/ops.h"
#include "ops/operation.h"
#include "ops/work.h"

namespace headroom {

namespace {

using cpu::kGroupColumns;
using cpu::kTileM;

constexpr std::int64_t kPackedFloats = 4 << 20;  // 16 MiB: one chunk at 2048^3
constexpr std::int64_t kMaxDepth = 16384;        // of one pass
constexpr std::int64_t kColumnMultiple = 64;     // of every panel
// Rows of C whose sums wait in the workspace, in tiles: the right operand is packed once for all of them.
constexpr std::int64_t kLeastWaitingTiles = 16;
constexpr std::int64_t kWaitingTilesPerThread = 2;

struct Chunks {
  std::int64_t depth;    // of one pass
  std::int64_t columns;  // packed at a time: whole groups, or a part of one where the depth is large
};

Chunks chunks(std::int64_t n, std::int64_t k) {
  const std::int64_t depth = std::max<std::int64_t>(std::min(k, kMaxDepth), 1);
  const std::int64_t fit = kPackedFloats / depth;
  const std::int64_t unit = fit >= kGroupColumns ? kGroupColumns : kColumnMultiple;
  return {.depth = depth, .columns = std::min(fit / unit * unit, round_up(n, kColumnMultiple))};
}

// What is packed at a time, at most, for any product of no more columns and depth.
std::int64_t packed_floats(std::int64_t n, std::int64_t k) {
  return std::min(checked_multiply(round_up(n, kColumnMultiple), chunks(n, k).depth), kPackedFloats);
}

struct MatmulPieces {
  MatmulPieces(std::int64_t n, std::int64_t k, DType result, int threads, std::byte* base) {
    Pieces pieces(base);
    packed = pieces.take<float>(packed_floats(n, k));
    scratch = pieces.take<float>(threads * cpu::kMatmulScratch);
    if (k > kMaxDepth && result != DType::f32) {
      waiting_rows = kTileM * std::max(kLeastWaitingTiles, kWaitingTilesPerThread * threads);
      waiting = pieces.take<float>(waiting_rows * chunks(n, k).columns);
    }
    bytes = pieces.bytes();
  }

  float* packed;             // [columns / panel][depth][panel]
  float* scratch;            // [threads]
  float* waiting = nullptr;  // [waiting_rows, columns], sums between two passes
  std::int64_t waiting_rows = 0;
  std::int64_t bytes;
};

cpu::Matrix matrix(const TensorView& view, std::int64_t row, std::int64_t column) {
  return {.data = static_cast<std::byte*>(view.raw()) + view.offset(row, column) * size_bytes(view.dtype()),
          .row_stride = view.stride(0),
          .column_stride = view.stride(1),
          .dtype = view.dtype()};
}

void check_operand(const TensorView& view, std::string_view what) {
  check(view.rank() == 2, "{} of a product has shape {}, not two dimensions", what, view.shape());
  check(view.dtype() == DType::f32 || view.dtype() == DType::bf16 || view.dtype() == DType::f16,
        "{} of a product holds {}; f32, bf16 and f16 can be multiplied", what, name(view.dtype()));
  const bool contiguous = view.stride(0) == 1 || view.stride(1) == 1 || view.elements() == 0 ||
                          view.extent(0) == 1 || view.extent(1) == 1;
  check(contiguous, "{} of a product has strides {} and {}, one has to be 1", what, view.stride(0),
        view.stride(1));
}

}  // namespace

void check_product(const TensorView& a, const TensorView& b, const TensorView& c) {
  check_operand(a, "the left operand");
  check_operand(b, "the right operand");
  check_operand(c, "the result");
  check(a.extent(1) == b.extent(0) && c.extent(0) == a.extent(0) && c.extent(1) == b.extent(1),
        "a product of {} and {} does not give {}", a.shape(), b.shape(), c.shape());
  check(c.stride(1) == 1 || c.extent(1) <= 1, "the result of a product has stride {} in its last dimension",
        c.stride(1));
}

void check_addend(const TensorView& addend, const TensorView& c) {
  check(addend.shape() == c.shape() && addend.dtype() == c.dtype(),
        "a product that gives {} of {} is added to {} of {}", name(c.dtype()), c.shape(),
        name(addend.dtype()), addend.shape());
  check(addend.stride(1) == 1 || addend.extent(1) <= 1,
        "what a product is added to has stride {} in its last dimension", addend.stride(1));
}

namespace {

std::int64_t cpu_workspace_bytes(const Product& product, const DeviceDescription& device) {
  return MatmulPieces(product.c.extent(1), product.a.extent(1), product.c.dtype(), device.cores, nullptr)
      .bytes;
}

// One pass: a part of the depth, for a part of C.
struct DepthPass {
  TensorView left;    // [rows, depth]
  TensorView right;   // [depth, columns]
  TensorView before;  // [rows, columns], what the sums begin with; empty: with zeros
  TensorView result;  // [rows, columns]
};

void run_pass(const DepthPass& pass, const MatmulPieces& pieces, int threads, const Stream& stream) {
  const cpu::MatmulKernels& kernels = cpu::matmul_kernels(stream.device->simd);
  const int panel_columns = cpu::vector_shape(stream.device->simd).panel();
  const std::int64_t rows = pass.left.extent(0);
  const std::int64_t depth = pass.left.extent(1);
  const std::int64_t columns = pass.right.extent(1);
  parallel_for(stream, divide_up(columns, panel_columns), [&](std::int64_t panel) {
    const std::int64_t column = panel * panel_columns;
    kernels.pack_panel(matrix(pass.right, 0, column), depth,
                       static_cast<int>(std::min<std::int64_t>(panel_columns, columns - column)),
                       pieces.packed + column * depth);
  });
  // Wide items pack the left operand less often; several for each thread end together.
  const std::int64_t tiles = divide_up(rows, kTileM);
  std::int64_t group = kGroupColumns;
  while (group > 2 * kColumnMultiple && tiles * divide_up(columns, group) < 4 * std::int64_t{threads})
    group /= 2;
  // Neighbours in the order share a group of panels.
  cpu::for_each_in_order(
      stream, threads, divide_up(columns, group) * tiles, [&](std::int64_t i, const cpu::Worker& worker) {
        const std::int64_t row = i % tiles * kTileM;
        const std::int64_t column = i / tiles * group;
        kernels.multiply(
            {.left = matrix(pass.left, row, 0),
             .right = pieces.packed + column * depth,
             .before = pass.before.elements() > 0 ? matrix(pass.before, row, column) : cpu::Matrix{},
             .result = matrix(pass.result, row, column),
             .rows = static_cast<int>(std::min<std::int64_t>(kTileM, rows - row)),
             .columns = static_cast<int>(std::min(group, columns - column)),
             .depth = depth,
             .scratch = pieces.scratch + worker.slot * cpu::kMatmulScratch});
      });
}

void cpu_product(const Product& product, TensorView workspace, const Stream& stream) {
  const auto& [a, b, c, add, addend] = product;
  check_product(a, b, c);
  const std::int64_t m = c.extent(0);
  const std::int64_t n = c.extent(1);
  const std::int64_t k = a.extent(1);
  const int threads = stream.pool == nullptr ? 1 : stream.pool->threads();
  const MatmulPieces pieces(n, k, c.dtype(), threads, static_cast<std::byte*>(workspace.raw()));
  check(workspace.bytes() >= pieces.bytes, "a product on {} threads needs a workspace of {} bytes, not {}",
        threads, pieces.bytes, workspace.bytes());
  const Chunks sizes = chunks(n, k);
  const std::int64_t block = pieces.waiting == nullptr ? std::max<std::int64_t>(m, 1) : pieces.waiting_rows;
  for (std::int64_t row = 0; row < m; row += block) {
    const std::int64_t rows = std::min(block, m - row);
    for (std::int64_t column = 0; column < n; column += sizes.columns) {
      const std::int64_t columns = std::min(sizes.columns, n - column);
      const TensorView result = c.slice(0, row, rows).slice(1, column, columns);
      const TensorView between =
          pieces.waiting == nullptr ? result : TensorView(pieces.waiting, DType::f32, {rows, columns});
      TensorView before = add ? result : TensorView();
      std::int64_t depth = 0;
      do {
        const std::int64_t step = std::min(sizes.depth, k - depth);
        const bool last = depth + step == k;
        run_pass({.left = a.slice(0, row, rows).slice(1, depth, step),
                  .right = b.slice(0, depth, step).slice(1, column, columns),
                  .before = before,
                  .result = last ? result : between},
                 pieces, threads, stream);
        before = between;
        depth += step;
      } while (depth < k);
    }
  }
  // Last: sums that began with something large would lose the digits of what is small.
  if (addend.elements() > 0) cpu::add(addend, c, c, stream);
}

bool overlaps_itself(const TensorView& matrix) {
  if (matrix.rank() != 2) return false;  // of a product that is not known yet
  const bool by_rows = matrix.stride(1) == 1 || matrix.extent(1) == 1;
  const int across = by_rows ? 0 : 1;
  return matrix.extent(across) > 1 && matrix.stride(across) < matrix.extent(1 - across);
}

// cuBLASLt multiplies matrices of one dtype; the result is f32 or of that dtype.
Support by_cublaslt(const Product& product, const DeviceDescription& device) {
  if (Support support = on_cuda_gpus(product, device); !support) return support;
  for (const TensorView* operand : {&product.a, &product.b, &product.c, &product.addend}) {
    if (overlaps_itself(*operand)) return Support::no("takes no matrix whose rows overlap");
  }
  const DType result = product.c.dtype();
  if (product.a.dtype() == product.b.dtype() && (result == DType::f32 || result == product.a.dtype())) {
    return Support::yes();
  }
  return Support::no("multiplies matrices of one dtype, into f32 or that dtype");
}

// What cuBLASLt is given to choose its algorithms from: NVIDIA's advice for each generation.
std::int64_t cuda_workspace_bytes(const Product&, const DeviceDescription& device) {
  return device.compute_major >= 9 ? std::int64_t{32} << 20 : std::int64_t{4} << 20;
}

constexpr ProductRow kRows[] = {{"cpu", on_cpus, cpu_product, cpu_workspace_bytes},
                                {"cublaslt", by_cublaslt, product_cuda, cuda_workspace_bytes}};

}  // namespace

std::span<const ProductRow> product_rows() {
  return kRows;
}

const ProductRow& product_row(const DeviceDescription& device) {
  return pick(product_rows(), Product{}, device, {}, "product");
}

std::int64_t product_workspace_bytes(std::int64_t n, std::int64_t k, const DeviceDescription& device,
                                     DType result) {
  const TensorView one_row_of_a(nullptr, DType::f32, {1, k});
  const TensorView one_row_of_c(nullptr, result, {1, n});
  return product_row(device).workspace_bytes({.a = one_row_of_a, .b = {}, .c = one_row_of_c}, device);
}

void matmul(Context& context, const TensorView& a, const TensorView& b, const TensorView& c, bool add) {
  check_product(a, b, c);
  run_operation<Product>(context, kRows, {a, b, c, add},
                         {.kernel = "product",
                          .flops = product_flops(c.extent(0), c.extent(1), a.extent(1)),
                          .bytes = moved_bytes({a, b, c})});
}

void matmul_add(Context& context, const TensorView& a, const TensorView& b, const TensorView& addend,
                const TensorView& c) {
  check_product(a, b, c);
  check_addend(addend, c);
  run_operation<Product>(context, kRows, {.a = a, .b = b, .c = c, .addend = addend},
                         {.kernel = "product",
                          .flops = product_flops(c.extent(0), c.extent(1), a.extent(1)),
                          .bytes = moved_bytes({a, b, c, addend})});
}

}  // namespace headroom
