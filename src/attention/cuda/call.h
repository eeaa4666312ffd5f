// What kernels are handed: plain values, so that they travel as kernel arguments. A call is one pattern of
// every head; a problem is a sequence of calls (sequence.h).
#pragma once

#include <cstdint>

#include "attention/cuda/tiles.h"
#include "headroom/core/dtype.h"

namespace headroom::cuda {

// A [batch, rows, heads, head_dim] tensor with any strides, in elements, and unit stride in head_dim.
struct HeadsView {
  void* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;

  template <class Element, class Index>
  [[nodiscard]] HEADROOM_HOST_DEVICE
  Element* row(Index batch, Index head, Index row) const {
    return static_cast<Element*>(data) + batch * batch_stride + row * row_stride + head * head_stride;
  }
};

// With what kernels need to know that take every dtype.
struct TypedHeadsView : HeadsView {
  DType dtype = DType::f32;
  bool aligned = false;  // four neighbours of a row can be moved as one
};

// The lists of rows of a call, one per sequence, or one per sequence and query head.
struct RowLists {
  std::int32_t* rows = nullptr;        // [lists, capacity]: a list's queries in the tensors; null: every row
  std::int32_t* key_rows = nullptr;    // [lists, key_capacity]: its keys; `rows` where they are the same
  std::int32_t* first = nullptr;       // [lists, capacity]: a query sees [first, last) of the list's keys
  std::int32_t* last = nullptr;        // [lists, capacity]
  std::int32_t* counts = nullptr;      // [lists]; null: seq_q
  std::int32_t* key_counts = nullptr;  // [lists]; null: seq_k
  Range* seen_by = nullptr;            // [lists, key_tiles]: the queries that may see a tile of keys
  std::int64_t capacity = 0;
  std::int64_t key_capacity = 0;
  std::int64_t key_tiles = 0;
  bool per_head = false;
};

// Lists of key blocks, one per sequence, K/V head and block of queries.
struct BlockTable {
  const std::int32_t* blocks = nullptr;  // null: every block
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;  // of K/V heads
  std::int64_t list_stride = 0;
  std::int64_t length = 0;  // of a list
  std::int64_t rows = 0;    // of a block; 0: no lists
  std::int64_t columns = 1;
};

struct AttentionCall {
  std::int64_t batch = 1;
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;
  std::int32_t seq_q = 0;
  std::int32_t seq_k = 0;
  std::int32_t head_dim = 0;
  float scale = 1;
  float softcap = 0;
  MaskRule rule;
  int pattern = 0;
  RowLists lists;
  BlockTable blocks;

  TypedHeadsView query;
  TypedHeadsView key;
  TypedHeadsView value;
  TypedHeadsView output;
  float* lse = nullptr;          // [batch, heads_q, seq_q]
  const float* sinks = nullptr;  // [heads_q], or null
  bool resume = false;           // the softmax goes on from the output, lse and row_sum that are there
  double* row_sum = nullptr;     // [batch, heads_q, seq_q] where rows stay open, or null

  // Backward.
  TypedHeadsView output_gradient;
  TypedHeadsView query_gradient;  // f32: sums
  TypedHeadsView key_gradient;
  TypedHeadsView value_gradient;
  const float* lse_gradient = nullptr;  // [batch, heads_q, seq_q], or null
  float* sinks_gradient = nullptr;      // [heads_q]
  float* row_shift = nullptr;      // [batch, heads_q, seq_q]: log2(e) lse, and inf where a row sees nothing
  float* row_dot = nullptr;        // [batch, heads_q, seq_q]: dO . O - dLSE
  bool add_key_gradients = false;  // to what is there, f32, instead of writing it
  // Zero at the launch: the next share of work; and per tile of dQ and slice of its columns the keys up to
  // which it has been summed, in tiles. Without turns blocks add in any order.
  std::int32_t* next_share = nullptr;
  std::int32_t* turns = nullptr;  // [batch, heads_q, turns_per_head]
  std::int64_t turns_per_head = 0;
  // A tile of keys sums over the query heads kv * group + m, group_begin <= m < group_end.
  std::int64_t group_begin = 0;
  std::int64_t group_end = 1;

  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int64_t group() const { return heads_q / heads_kv; }
  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int64_t list_of(std::int64_t b, std::int64_t head) const {
    return lists.per_head ? b * heads_q + head : b;
  }
  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int64_t statistics(std::int64_t b, std::int64_t head) const { return (b * heads_q + head) * seq_q; }
  [[nodiscard]] HEADROOM_HOST_DEVICE
  std::int32_t* turn(std::int64_t b, std::int64_t head, std::int64_t index) const {
    return turns == nullptr ? nullptr : turns + (b * heads_q + head) * turns_per_head + index;
  }
  [[nodiscard]] HEADROOM_HOST_DEVICE
  BlockList block_list(std::int64_t b, std::int64_t head, std::int64_t block) const {
    if (blocks.blocks == nullptr) return {};
    return {blocks.blocks + b * blocks.batch_stride + head / group() * blocks.head_stride +
                block * blocks.list_stride,
            blocks.length, blocks.columns};
  }
};

// Of the interval kernels: keys of a tile; rows of a tile of queries, at least; columns of the gradients that
// a block of backward sums, at most.
inline constexpr std::int32_t kTileKeys = 64;
inline constexpr std::int32_t kLeastTileRows = 64;
inline constexpr int kGradientColumns = 128;

}  // namespace headroom::cuda
