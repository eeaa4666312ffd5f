#include "parallel/transfer_rows.h"

#include <cstring>

#include "headroom/cpu/thread_pool.h"
#include "headroom/ops/elementwise.h"
#include "parallel/cuda/rows.h"

namespace headroom {
namespace {

// body(row of a head in the tensor, the same row packed), over all rows that are sent; in bytes from the
// beginning of either.
template <class Body>
void for_each_row(const Transfer& transfer, const TensorView& tensor, std::int64_t first,
                  const Stream& stream, const Body& body) {
  const std::int64_t heads = tensor.extent(2);
  const std::int64_t element = size_bytes(tensor.dtype());
  const std::int64_t row_bytes = tensor.extent(3) * element;
  if (transfer.rows.empty()) {
    const std::int64_t keys = transfer.keys.size();
    parallel_for(stream, tensor.extent(0) * keys, [&](std::int64_t item) {
      const std::int64_t b = item / keys;
      const std::int64_t row = transfer.keys.begin - first + item % keys;
      for (std::int64_t h = 0; h < heads; ++h) {
        body(tensor.offset(b, row, h) * element, (item * heads + h) * row_bytes);
      }
    });
    return;
  }
  parallel_for(stream, std::ssize(transfer.rows), [&](std::int64_t item) {
    std::int64_t packed = 0;
    for (std::int64_t before = 0; before < item; ++before) {
      for (const RowRun& run : transfer.rows[static_cast<std::size_t>(before)]) packed += run.count;
    }
    for (const RowRun& run : transfer.rows[static_cast<std::size_t>(item)]) {
      for (std::int64_t i = 0; i < run.count; ++i) {
        const std::int64_t row = run.begin + i * run.stride - first;
        body(tensor.offset(item / heads, row, item % heads) * element, packed++ * row_bytes);
      }
    }
  });
}

std::byte* memory_of(const TensorView& view) {
  return static_cast<std::byte*>(view.raw());
}

// The same on a GPU.
void move_on_gpu(cuda::RowMove move, const Transfer& transfer, const PositionedRows& tensor,
                 const TensorView& packed, const Stream& stream) {
  const TensorView& rows = tensor.rows;
  const std::int64_t heads = rows.extent(2);
  const std::int64_t element = size_bytes(rows.dtype());
  cuda::RowMover mover(move, rows.dtype(), rows.extent(3), stream);
  std::byte* next = memory_of(packed);
  const auto add = [&](std::int64_t b, std::int64_t head, std::int64_t block_heads, const RowRun& run) {
    mover.add({.tensor = memory_of(rows) + rows.offset(b, run.begin - tensor.first, head) * element,
               .row_stride = run.stride * rows.stride(1),
               .head_stride = rows.stride(2),
               .packed = next,
               .rows = run.count,
               .heads = block_heads});
    next += run.count * block_heads * rows.extent(3) * element;
  };
  if (transfer.rows.empty()) {
    for (std::int64_t b = 0; b < rows.extent(0); ++b) {
      add(b, 0, heads, {transfer.keys.begin, transfer.keys.size(), 1});
    }
  }
  for (std::int64_t item = 0; item < std::ssize(transfer.rows); ++item) {
    for (const RowRun& run : transfer.rows[static_cast<std::size_t>(item)]) {
      add(item / heads, item % heads, 1, run);
    }
  }
  mover.finish();
}

bool on_gpu(const Stream& stream) {
  return stream.device->kind == DeviceKind::cuda;
}

Work work_of(std::string_view kernel, const Transfer& transfer, const TensorView& rows, double passes) {
  return {
      .kernel = kernel,
      .bytes = passes * static_cast<double>(transfer.row_count * rows.extent(3) * size_bytes(rows.dtype()))};
}

template <class T>
void add_row(const std::byte* from, std::byte* to, std::int64_t elements) {
  const T* addend = reinterpret_cast<const T*>(from);
  T* sum = reinterpret_cast<T*>(to);
  for (std::int64_t i = 0; i < elements; ++i) sum[i] += addend[i];
}

}  // namespace

void pack_rows(Context& context, const Transfer& transfer, const TensorView& packed,
               const PositionedRows& from) {
  context.run(work_of("ring pack", transfer, from.rows, 2), [&](const Stream& stream) {
    if (on_gpu(stream)) return move_on_gpu(cuda::RowMove::pack, transfer, from, packed, stream);
    const auto bytes = static_cast<std::size_t>(from.rows.extent(3) * size_bytes(from.rows.dtype()));
    for_each_row(transfer, from.rows, from.first, stream, [&](std::int64_t row, std::int64_t at) {
      std::memcpy(memory_of(packed) + at, memory_of(from.rows) + row, bytes);
    });
  });
}

void unpack_rows(Context& context, const Transfer& transfer, const PositionedRows& to,
                 const TensorView& packed) {
  zero(context, to.rows);
  context.run(work_of("ring unpack", transfer, to.rows, 2), [&](const Stream& stream) {
    if (on_gpu(stream)) return move_on_gpu(cuda::RowMove::unpack, transfer, to, packed, stream);
    const auto bytes = static_cast<std::size_t>(to.rows.extent(3) * size_bytes(to.rows.dtype()));
    for_each_row(transfer, to.rows, to.first, stream, [&](std::int64_t row, std::int64_t at) {
      std::memcpy(memory_of(to.rows) + row, memory_of(packed) + at, bytes);
    });
  });
}

void add_packed_rows(Context& context, const Transfer& transfer, const PositionedRows& to,
                     const TensorView& packed) {
  context.run(work_of("ring sum", transfer, to.rows, 3), [&](const Stream& stream) {
    if (on_gpu(stream)) return move_on_gpu(cuda::RowMove::add, transfer, to, packed, stream);
    const auto add = to.rows.dtype() == DType::f64 ? add_row<double> : add_row<float>;
    for_each_row(transfer, to.rows, to.first, stream, [&](std::int64_t row, std::int64_t at) {
      add(memory_of(packed) + at, memory_of(to.rows) + row, to.rows.extent(3));
    });
  });
}

}  // namespace headroom
