#include "parallel/block_lists.h"

#include <algorithm>

#include "parallel/cuda/rows.h"

namespace headroom {
namespace {

void divide_on_cpu(const BlockListPart& part) {
  const TensorView& whole = part.from;
  const std::int64_t heads = whole.extent(1);
  const std::int64_t tiles = whole.extent(2);
  const std::int64_t length = whole.extent(3);
  for (std::int64_t item = 0; item < whole.extent(0) * heads * tiles; ++item) {
    const std::int32_t* from =
        whole.data<std::int32_t>() + whole.offset(item / (heads * tiles), item / tiles % heads, item % tiles);
    std::int32_t* to = part.to.data<std::int32_t>() + item * length;
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < length && from[i] >= 0; ++i) {
      if (from[i] >= part.begin && from[i] < part.end) {
        to[count++] = static_cast<std::int32_t>(from[i] - part.begin);
      }
    }
    std::fill(to + count, to + length, -1);
  }
}

}  // namespace

void divide_block_lists(Context& context, const BlockListPart& part) {
  const Work work{.kernel = "ring block lists", .bytes = 2 * static_cast<double>(part.to.bytes())};
  context.run(work, [&](const Stream& stream) {
    if (stream.device->kind == DeviceKind::cuda) return cuda::divide_block_lists(part, stream);
    divide_on_cpu(part);
  });
}

}  // namespace headroom
