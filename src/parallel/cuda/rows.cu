// Rows between a rank's tensors and what is sent, sixteen bytes a thread. Bound by memory.
#include "parallel/cuda/rows.h"

#include "headroom/core/checked.h"
#include "headroom/core/error.h"
#if defined(__CUDACC__)
#include "cuda/launch.h"
#endif

namespace headroom::cuda {
namespace {

constexpr int kMoveThreads = 256;
constexpr std::int64_t kUnitBytes = 16;

// Both tensors in units of sixteen bytes, and the first unit of each block in the launch.
struct Units {
  float4* tensor = nullptr;
  float4* packed = nullptr;
  std::int64_t per_row = 0;
  std::int64_t before[RowBlocks::kMost + 1] = {};
};

// One thread per unit of sixteen bytes.
template <RowMove kMove>
__global__ void move_rows_kernel(Units units, RowBlocks blocks) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kMoveThreads + threadIdx.x;
  if (i >= units.before[blocks.count]) return;
  int n = 0;
  while (i >= units.before[n + 1]) ++n;
  const RowBlock& block = blocks.blocks[n];
  const std::int64_t unit = i - units.before[n];
  const std::int64_t row = unit / units.per_row;
  float4* here = units.tensor + block.tensor + row / block.heads * block.row_stride +
                 row % block.heads * block.head_stride + unit % units.per_row;
  float4* there = units.packed + block.packed + unit;
  if constexpr (kMove == RowMove::pack) {
    *there = *here;
  } else if constexpr (kMove == RowMove::unpack) {
    *here = *there;
  } else {
    const float4 sum = *here;
    const float4 part = *there;
    *here = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
  }
}

// Strides and offsets in units.
RowBlocks in_units(RowBlocks blocks, std::int64_t elements_per_unit) {
  for (int n = 0; n < blocks.count; ++n) {
    RowBlock& block = blocks.blocks[n];
    for (std::int64_t* elements : {&block.tensor, &block.row_stride, &block.head_stride, &block.packed}) {
      check(*elements % elements_per_unit == 0, "rows that are exchanged start at multiples of {} bytes",
            kUnitBytes);
      *elements /= elements_per_unit;
    }
  }
  return blocks;
}

// One thread per list.
__global__ void divide_lists_kernel(const std::int32_t* from, std::int64_t batch_stride,
                                    std::int64_t head_stride, std::int64_t list_stride, std::int32_t* to,
                                    std::int64_t lists, std::int64_t heads, std::int64_t tiles,
                                    std::int64_t length, std::int64_t begin, std::int64_t end) {
  const std::int64_t list = static_cast<std::int64_t>(blockIdx.x) * kMoveThreads + threadIdx.x;
  if (list >= lists) return;
  from +=
      list / (heads * tiles) * batch_stride + list / tiles % heads * head_stride + list % tiles * list_stride;
  to += list * length;
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < length && from[i] >= 0; ++i) {
    if (from[i] >= begin && from[i] < end) to[count++] = static_cast<std::int32_t>(from[i] - begin);
  }
  for (; count < length; ++count) to[count] = -1;
}

}  // namespace

void move_rows(RowMove move, const TensorView& tensor, const TensorView& packed, const RowBlocks& blocks,
               const Stream& stream) {
  const std::int64_t element = size_bytes(tensor.dtype());
  const std::int64_t row_bytes = tensor.extent(3) * element;
  const auto aligned = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; };
  check(row_bytes % kUnitBytes == 0 && aligned(tensor.raw()) && aligned(packed.raw()),
        "rows that are exchanged start at multiples of {} bytes", kUnitBytes);
  check(move != RowMove::add || tensor.dtype() == DType::f32, "rows are added in f32 on GPUs, not in {}",
        name(tensor.dtype()));
  Units units{.tensor = static_cast<float4*>(tensor.raw()),
              .packed = static_cast<float4*>(packed.raw()),
              .per_row = row_bytes / kUnitBytes};
  for (int n = 0; n < blocks.count; ++n) {
    const RowBlock& block = blocks.blocks[n];
    units.before[n + 1] = units.before[n] + block.rows * block.heads * units.per_row;
  }
  const auto start = [&](void (*kernel)(Units, RowBlocks)) {
    launch("move_rows_kernel", kernel, divide_up(units.before[blocks.count], std::int64_t{kMoveThreads}),
           kMoveThreads, 0, stream, units, in_units(blocks, kUnitBytes / element));
  };
  switch (move) {
    case RowMove::pack: return start(move_rows_kernel<RowMove::pack>);
    case RowMove::unpack: return start(move_rows_kernel<RowMove::unpack>);
    case RowMove::add: return start(move_rows_kernel<RowMove::add>);
  }
}

void divide_block_lists(const BlockListPart& part, const Stream& stream) {
  const TensorView& from = part.from;
  const std::int64_t lists = from.extent(0) * from.extent(1) * from.extent(2);
  launch("divide_lists_kernel", divide_lists_kernel, divide_up(lists, std::int64_t{kMoveThreads}),
         kMoveThreads, 0, stream, static_cast<const std::int32_t*>(from.raw()), from.stride(0),
         from.stride(1), from.stride(2), static_cast<std::int32_t*>(part.to.raw()), lists, from.extent(1),
         from.extent(2), from.extent(3), part.begin, part.end);
}

}  // namespace headroom::cuda
