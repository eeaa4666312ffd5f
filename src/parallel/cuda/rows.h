// What a ring does with rows and block lists in a GPU's memory. A build without CUDA has functions that
// refuse in their place.
#pragma once

#include "headroom/core/stream.h"
#include "headroom/core/tensor_view.h"
#include "parallel/block_lists.h"

namespace headroom::cuda {

// Rows of a tensor that lie one after another in what is sent: [rows, heads, head_dim].
struct RowBlock {
  std::int64_t tensor = 0;  // elements from the beginning of the tensor
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t packed = 0;  // elements from the beginning of what is sent
  std::int64_t rows = 0;
  std::int64_t heads = 1;
};

// Blocks for one launch. They travel with its arguments, so no memory is needed for them.
struct RowBlocks {
  static constexpr int kMost = 32;

  RowBlock blocks[kMost];
  int count = 0;

  [[nodiscard]] bool full() const { return count == kMost; }
  void add(const RowBlock& block) { blocks[count++] = block; }
};

enum class RowMove : std::uint8_t { pack, unpack, add };
// pack: packed <- the rows; unpack: the rows <- packed; add: the rows <- the rows + packed, in f32. The
// tensor is [batch, rows, heads, head_dim], and rows of both start at multiples of 16 bytes.
void move_rows(RowMove move, const TensorView& tensor, const TensorView& packed, const RowBlocks& blocks,
               const Stream& stream);

void divide_block_lists(const BlockListPart& part, const Stream& stream);

}  // namespace headroom::cuda
