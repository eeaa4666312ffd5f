// Attention: O = softmax(scale * Q K^T + mask) V without the N x N scores, and its gradients. The problem
// says sizes and options and holds no pointers, so it can be planned without data; the views come with the
// call.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "headroom/core/kernel_family.h"

namespace headroom {

// Segments of `segment` rows (restarting at document starts); in each, row r takes part where r % rate equals
// the head's offset, head % rate. Segment 0: not dilated.
struct Dilation {
  std::int64_t segment = 0;
  std::int64_t rate = 1;

  bool operator==(const Dilation&) const = default;
};

// causal AND window AND documents AND dilation AND blocks; what is not said does not restrict.
struct Mask {
  static constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
  static constexpr int kMaxDilations = 8;

  bool causal = false;  // aligned at the bottom right: query i sees keys up to i + seq_k - seq_q
  std::int64_t window_left = kUnlimited;   // keys before the query's own position that it sees
  std::int64_t window_right = kUnlimited;  // and after it
  std::int64_t max_documents = 0;          // capacity for packed documents; 0: one sequence
  std::array<Dilation, kMaxDilations> dilations{};
  int dilation_count = 0;       // patterns; heads are dealt to them in equal groups, in order
  bool mix_dilations = false;   // instead every head runs every pattern, weighted by log-sum-exp
  std::int64_t block_rows = 0;  // block-sparse: tile sizes and how many key tiles a query tile may list
  std::int64_t block_columns = 0;
  std::int64_t max_blocks_per_row = 0;

  bool operator==(const Mask&) const = default;
};

struct AttentionProblem {
  std::int64_t batch = 1;
  std::int64_t seq_q = 0;
  std::int64_t seq_k = 0;
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;  // divides heads_q
  std::int64_t head_dim = 0;  // a multiple of 8, 8 to 256
  DType dtype = DType::f32;   // of Q, K, V, O and their gradients
  float scale = 0;            // 0: 1 / sqrt(head_dim)
  float softcap = 0;          // scores <- softcap * tanh(scores / softcap); 0: off
  bool sinks = false;         // one learned logit per query head joins every softmax
  Mask mask{};
};

// Any strides, with unit stride in head_dim.
struct AttentionForward {
  TensorView query;            // [batch, seq_q, heads_q, head_dim]
  TensorView key;              // [batch, seq_k, heads_kv, head_dim]
  TensorView value;            // [batch, seq_k, heads_kv, head_dim]
  TensorView sinks;            // [heads_q] f32, where the problem has sinks
  TensorView document_starts;  // [batch, max_documents + 1] i32, rising, on the host; where it has documents
  TensorView blocks;  // [batch, heads_q, ceil(seq_q / block_rows), max_blocks_per_row] i32, -1 ends a list
  TensorView output;  // [batch, seq_q, heads_q, head_dim]
  TensorView lse;     // [batch, heads_q, seq_q] f32; -inf where a row sees nothing
};

struct AttentionBackward {
  AttentionForward forward;    // its inputs and its results
  TensorView output_gradient;  // [batch, seq_q, heads_q, head_dim]
  TensorView lse_gradient;     // [batch, heads_q, seq_q] f32, or empty for zero
  TensorView query_gradient;   // as query, key, value, sinks
  TensorView key_gradient;
  TensorView value_gradient;
  TensorView sinks_gradient;
};

using AttentionImplementation = Implementation<AttentionProblem, AttentionForward, AttentionBackward>;

// Throws with the value that is wrong.
void validate(const AttentionProblem& problem);

// (query, key) pairs of one head of one sequence that causal and window leave, exactly. Documents, dilation
// and blocks leave fewer, depending on the batch.
[[nodiscard]] std::int64_t visible_pairs(const AttentionProblem& problem);

// Arithmetic of the pass over those pairs: 4 d per pair forward, 10 d backward.
[[nodiscard]] double flops(const AttentionProblem& problem, Pass pass);

// Bytes that have to move at least: every input read once, every output written once.
[[nodiscard]] std::int64_t minimum_bytes(const AttentionProblem& problem, Pass pass);

}  // namespace headroom
