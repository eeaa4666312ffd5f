// Cutting tensors into work items. Chunks are of fixed size, so what an item does never depends on how many
// threads there are.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "headroom/core/checked.h"
#include "headroom/core/tensor_view.h"
#include "headroom/cpu/thread_pool.h"
#include "ops/cpu/kernels.h"

namespace headroom::cpu {

// Elements of a work item: tens of microseconds, so that starting one costs nothing and polling is frequent.
inline constexpr std::int64_t kSpan = 1 << 15;

[[nodiscard]] inline void* at(const TensorView& view, std::int64_t offset) {
  return static_cast<std::byte*>(view.raw()) + offset * size_bytes(view.dtype());
}

// [rows, dim] or [tokens, heads, dim] with unit stride in dim.
[[nodiscard]] inline Rows rows_of(const TensorView& view) {
  const bool pairs = view.rank() == 3;
  return {.data = view.raw(),
          .dtype = view.dtype(),
          .outer_stride = view.stride(0),
          .inner_stride = pairs ? view.stride(1) : 0,
          .inner = pairs ? view.extent(1) : 1};
}

// body(begin, end) for chunks of rows, about kSpan elements each.
template <class Body>
void for_row_chunks(std::int64_t rows, std::int64_t row_elements, const Stream& stream, const Body& body) {
  const std::int64_t chunk = std::max<std::int64_t>(kSpan / std::max<std::int64_t>(row_elements, 1), 1);
  parallel_for(stream, divide_up(rows, chunk),
               [&](std::int64_t item) { body(item * chunk, std::min(rows, (item + 1) * chunk)); });
}

// body(pointers, count) for spans that are contiguous in every view. One shape: all dense, or [rows, dim]
// with unit stride in dim.
template <std::size_t N, class Body>
void for_each_span(const std::array<TensorView, N>& views, const Stream& stream, const Body& body) {
  const auto call = [&](const auto& offset, std::int64_t count) {
    std::array<void*, N> pointers{};
    for (std::size_t i = 0; i < N; ++i) pointers[i] = at(views[i], offset(views[i]));
    body(pointers, count);
  };
  const std::int64_t elements = views[0].elements();
  if (elements == 0) return;
  if (std::ranges::all_of(views, [](const TensorView& view) { return view.is_dense(); })) {
    parallel_for(stream, divide_up(elements, kSpan), [&](std::int64_t item) {
      call([&](const TensorView&) { return item * kSpan; }, std::min(kSpan, elements - item * kSpan));
    });
    return;
  }
  const std::int64_t dim = views[0].extent(1);
  for_row_chunks(views[0].extent(0), dim, stream, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      call([&](const TensorView& view) { return row * view.stride(0); }, dim);
    }
  });
}

}  // namespace headroom::cpu
