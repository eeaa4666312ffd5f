// Rows between a rank's tensors and what is sent, a unit of sixteen bytes a thread, or of four where rows are
// shorter. Bound by memory.
#include "parallel/cuda/rows.h"

#include "headroom/core/checked.h"
#include "headroom/core/error.h"
#if defined(__CUDACC__)
#include "cuda/launch.h"
#endif

namespace headroom::cuda {
namespace {

constexpr int kMoveThreads = 256;

// Sizes in units, and the first unit of each block in the launch.
struct Units {
  std::int64_t per_row = 0;
  std::int64_t before[RowBlocks::kMost + 1] = {};
};

__device__ __forceinline__ float sum_of(float a, float b) {
  return a + b;
}
__device__ __forceinline__ float4 sum_of(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// One thread per unit.
template <class Unit, RowMove kMove>
__global__ void move_rows_kernel(Units units, RowBlocks blocks) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kMoveThreads + threadIdx.x;
  if (i >= units.before[blocks.count]) return;
  int n = 0;
  while (i >= units.before[n + 1]) ++n;
  const RowBlock& block = blocks.blocks[n];
  const std::int64_t unit = i - units.before[n];
  const std::int64_t row = unit / units.per_row;
  Unit* here = reinterpret_cast<Unit*>(block.tensor) + row / block.heads * block.row_stride +
               row % block.heads * block.head_stride + unit % units.per_row;
  Unit* there = reinterpret_cast<Unit*>(block.packed) + unit;
  if constexpr (kMove == RowMove::pack) {
    *there = *here;
  } else if constexpr (kMove == RowMove::unpack) {
    *here = *there;
  } else {
    *here = sum_of(*here, *there);
  }
}

// Whether all rows start at multiples of so many bytes and are multiples of it.
bool divides(std::int64_t unit_bytes, const RowBlocks& blocks) {
  const std::int64_t element = size_bytes(blocks.dtype);
  const auto whole = [&](std::int64_t bytes) { return bytes % unit_bytes == 0; };
  const auto aligned = [&](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(unit_bytes) == 0;
  };
  bool all = whole(blocks.row_elements * element);
  for (int n = 0; n < blocks.count; ++n) {
    const RowBlock& block = blocks.blocks[n];
    all = all && whole(block.row_stride * element) && whole(block.head_stride * element) &&
          aligned(block.tensor) && aligned(block.packed);
  }
  return all;
}

template <class Unit>
void move_units(RowMove move, RowBlocks blocks, const Stream& stream) {
  const std::int64_t elements = static_cast<std::int64_t>(sizeof(Unit)) / size_bytes(blocks.dtype);
  Units units;
  units.per_row = blocks.row_elements / elements;
  for (int n = 0; n < blocks.count; ++n) {
    RowBlock& block = blocks.blocks[n];
    block.row_stride /= elements;
    block.head_stride /= elements;
    units.before[n + 1] = units.before[n] + block.rows * block.heads * units.per_row;
  }
  const auto start = [&](void (*kernel)(Units, RowBlocks)) {
    launch("move_rows_kernel", kernel, divide_up(units.before[blocks.count], std::int64_t{kMoveThreads}),
           kMoveThreads, 0, stream, units, blocks);
  };
  switch (move) {
    case RowMove::pack: return start(move_rows_kernel<Unit, RowMove::pack>);
    case RowMove::unpack: return start(move_rows_kernel<Unit, RowMove::unpack>);
    case RowMove::add: return start(move_rows_kernel<Unit, RowMove::add>);
  }
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

void move_rows(RowMove move, const RowBlocks& blocks, const Stream& stream) {
  check(move != RowMove::add || blocks.dtype == DType::f32, "rows are added in f32 on GPUs, not in {}",
        name(blocks.dtype));
  if (divides(sizeof(float4), blocks)) return move_units<float4>(move, blocks, stream);
  check(size_bytes(blocks.dtype) <= 4 && divides(sizeof(float), blocks),
        "rows of {} {} elements cannot be exchanged on GPUs: rows start at multiples of {} bytes",
        blocks.row_elements, name(blocks.dtype), sizeof(float));
  move_units<float>(move, blocks, stream);
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
