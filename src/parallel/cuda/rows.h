// What attention over ranks does with rows and block lists in a GPU's memory. A build without CUDA has
// functions that refuse in their place.
#pragma once

#include <cstddef>

#include "headroom/core/stream.h"
#include "headroom/core/tensor_view.h"
#include "parallel/block_lists.h"

namespace headroom::cuda {

// Rows of a tensor that lie one after another in what is sent: [rows, heads, elements of a row].
struct RowBlock {
  std::byte* tensor = nullptr;  // the first row
  std::int64_t row_stride = 0;  // elements
  std::int64_t head_stride = 0;
  std::byte* packed = nullptr;
  std::int64_t rows = 0;
  std::int64_t heads = 1;
};

// Blocks for one launch, with rows of one kind. They travel with its arguments, so no memory is needed for
// them.
struct RowBlocks {
  static constexpr int kMost = 32;

  DType dtype = DType::f32;
  std::int64_t row_elements = 0;
  RowBlock blocks[kMost];
  int count = 0;
};

enum class RowMove : std::uint8_t { pack, unpack, add };
// pack: packed <- the rows; unpack: the rows <- packed; add: the rows <- the rows + packed, in f32. All rows
// of the tensor and of what is packed start at multiples of 16 bytes, or all at multiples of 4.
void move_rows(RowMove move, const RowBlocks& blocks, const Stream& stream);

// Moves any number of blocks, in as few launches as they take.
class RowMover {
 public:
  RowMover(RowMove move, DType dtype, std::int64_t row_elements, const Stream& stream)
      : move_(move), stream_(stream) {
    blocks_.dtype = dtype;
    blocks_.row_elements = row_elements;
  }

  void add(const RowBlock& block) {
    blocks_.blocks[blocks_.count++] = block;
    if (blocks_.count == RowBlocks::kMost) finish();
  }
  // Launches what is left.
  void finish() {
    if (blocks_.count > 0) move_rows(move_, blocks_, stream_);
    blocks_.count = 0;
  }

 private:
  RowMove move_;
  const Stream& stream_;
  RowBlocks blocks_;
};

void divide_block_lists(const BlockListPart& part, const Stream& stream);

}  // namespace headroom::cuda
