// Exact attention on the CPU, forward and backward, in f32 arithmetic over f32, bf16 or f16 tensors, where
// every query sees one interval of keys. No allocation: the caller hands over a workspace whose size depends
// on the sizes and the number of threads only. The same bits whatever the number of threads.
#pragma once

#include <cstdint>
#include <span>

#include "attention/cpu/kernels.h"
#include "headroom/core/checked.h"
#include "headroom/core/stream.h"

namespace headroom::cpu {

// [batch, rows, heads, head_dim] with any strides, in elements, and unit stride in head_dim.
struct HeadsView {
  void* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
};

// [batch, heads, rows] of f32, with unit stride along the rows.
template <class T = float>
struct StatisticsView {
  T* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
};

struct AttentionSizes {
  std::int64_t batch = 1;
  std::int64_t seq_q = 0;
  std::int64_t seq_k = 0;
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;                 // divides heads_q
  int head_dim = 0;                          // a multiple of 8, 8 to 256
  std::int64_t block_rows = 0;               // rows that share a list of key ranges; 0: there are no lists
  DType dtype = DType::f32;                  // of Q, K and V
  DType output_dtype = DType::f32;           // of O
  DType output_gradient_dtype = DType::f32;  // of dO
  DType query_gradient_dtype = DType::f32;   // of dQ
  DType key_gradient_dtype = DType::f32;     // of dK and dV
  bool add_query_gradient = false;           // to what is there, f32, instead of writing it
  bool add_key_gradients = false;
  int threads = 1;           // of the pool the call will run on
  VectorShape vectors = {};  // of the device it will run on

  // Query tiles are equal parts of a block, or kTileQ rows.
  [[nodiscard]] std::int64_t parts() const { return block_rows == 0 ? 1 : divide_up(block_rows, kTileQ); }
  [[nodiscard]] std::int64_t tile_q() const {
    return block_rows == 0 ? kTileQ : divide_up(block_rows, parts());
  }
  [[nodiscard]] std::int64_t q_tiles() const {
    return block_rows == 0 ? divide_up(seq_q, kTileQ) : divide_up(seq_q, block_rows) * parts();
  }
  [[nodiscard]] std::int64_t k_tiles() const { return divide_up(seq_k, kTileK); }
};

// Where only some rows of the tensors take part: row i of a head is row rows[i] of the tensors, i < counts[b
// * heads_q + h]. Without them every row takes part.
struct RowList {
  const std::int32_t* rows = nullptr;
  const std::int32_t* counts = nullptr;
  std::int64_t batch_stride = 0;  // of rows
  std::int64_t head_stride = 0;
};

// Query row i sees keys [first[i], last[i]), 0 <= first, last <= seq_k, of those its tile's key list names.
// Strides 0 share the arrays between batches or heads.
struct IntervalMask {
  const std::int32_t* first = nullptr;  // [seq_q]
  const std::int32_t* last = nullptr;   // [seq_q]
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  // Intervals and sizes count the rows that take part; with lists of rows heads_q is heads_kv.
  RowList queries{};
  RowList keys{};
  // Block sparsity: block r = (b * heads_kv + kv) * ceil(seq_q / block_rows) + i has ranges [range_starts[r],
  // range_starts[r + 1]), rising, disjoint. Null: every key.
  const KeySpan* ranges = nullptr;
  const std::int64_t* range_starts = nullptr;
};

struct AttentionForwardCall {
  AttentionSizes sizes;
  float scale = 1;
  float softcap = 0;  // scores <- softcap * tanh(scores / softcap); 0: off
  IntervalMask mask;
  HeadsView query;
  HeadsView key;
  HeadsView value;
  HeadsView output;
  const float* sinks = nullptr;  // [heads_q] logits that join the softmax, or null
  bool resume = false;           // the softmax goes on from the output, lse and row_sum that are there
  StatisticsView<> lse;
  StatisticsView<double> row_sum{};  // without data: rows are closed
};

struct AttentionBackwardCall {
  AttentionForwardCall forward;  // its inputs and its results
  HeadsView output_gradient;
  StatisticsView<> lse_gradient;  // without data for zero
  HeadsView query_gradient;
  HeadsView key_gradient;
  HeadsView value_gradient;
  float* sinks_gradient = nullptr;  // [heads_q], where there are sinks; summed over the batch
};

[[nodiscard]] std::int64_t forward_workspace_bytes(const AttentionSizes& sizes);
[[nodiscard]] std::int64_t backward_workspace_bytes(const AttentionSizes& sizes);

// The workspace is 64-byte aligned.
void attention_forward(const AttentionForwardCall& call, std::span<std::byte> workspace,
                       const Stream& stream);
void attention_backward(const AttentionBackwardCall& call, std::span<std::byte> workspace,
                        const Stream& stream);

}  // namespace headroom::cpu
