// The work of operations, counted.
#pragma once

#include <initializer_list>
#include <string_view>

#include "headroom/core/tensor_view.h"
#include "headroom/memory/work.h"

namespace headroom {

[[nodiscard]] inline double moved_bytes(std::initializer_list<TensorView> views) {
  double bytes = 0;
  for (const TensorView& view : views) bytes += static_cast<double>(view.bytes());
  return bytes;
}

// Of an operation whose arithmetic is nothing beside its bytes; a view that is read and written stands twice.
[[nodiscard]] inline Work moves(std::string_view kernel, std::initializer_list<TensorView> views) {
  return {.kernel = kernel, .flops = 0, .bytes = moved_bytes(views)};
}

[[nodiscard]] inline double product_flops(std::int64_t m, std::int64_t n, std::int64_t k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

}  // namespace headroom
