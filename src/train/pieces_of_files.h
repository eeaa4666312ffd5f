// Which parts of a large file are looked at where reading all of it would take too long.
#pragma once

#include <algorithm>
#include <cstdint>

namespace headroom {

struct PieceSizes {
  std::int64_t count = 0;
  std::int64_t bytes = 0;  // of each
};

// body(begin, bytes) for pieces of [0, total) that rise: all of it where `count` pieces cover it, else so
// many at equal distances, the first at the beginning and the last at the end.
template <class Body>
void for_each_piece(std::int64_t total, const PieceSizes& sizes, const Body& body) {
  if (total <= sizes.count * sizes.bytes) {
    for (std::int64_t begin = 0; begin < total; begin += sizes.bytes) {
      body(begin, std::min(sizes.bytes, total - begin));
    }
    return;
  }
  const std::int64_t last = total - sizes.bytes;
  const std::int64_t distance = last / (sizes.count - 1);
  for (std::int64_t i = 0; i + 1 < sizes.count; ++i) body(i * distance, sizes.bytes);
  body(last, sizes.bytes);
}

}  // namespace headroom
