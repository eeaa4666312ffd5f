// The block lists of a chunk's queries, with the chunk's own keys alone.
#pragma once

#include "headroom/memory/context.h"

namespace headroom {

// to <- of each list in `from` the key tiles of [begin, end), counted from `begin`, then -1. Lists are as
// attention has them: rising, then -1.
struct BlockListPart {
  TensorView from;  // [batch, heads_kv, tiles, max_blocks_per_row] i32, unit stride in the last dimension
  TensorView to;    // as `from`, dense
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
void divide_block_lists(Context& context, const BlockListPart& part);

}  // namespace headroom
