// Attention: O = softmax(scale * Q K^T + mask) V without the N x N scores, and its gradients. The problem
// says sizes and options and holds no pointers, so it can be planned without data; the views come with the
// call.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

#include "headroom/attention/mask.h"
#include "headroom/core/kernel_family.h"
#include "headroom/memory/context.h"

namespace headroom {

// The positions of a chunk in the sequence that it is a part of: query q is at query_start + q, key k at
// key_start + k.
struct AttentionChunk {
  std::int64_t query_start = 0;
  std::int64_t key_start = 0;
};

// How many sequences a problem has, and how many K/V heads each of them.
struct KeyHeads {
  std::int64_t sequences = 1;
  std::int64_t heads = 1;
  bool operator==(const KeyHeads&) const = default;
};

// Backward may take the keys of some queries chunk by chunk. Row statistics and the sums of dQ then stay in
// `open` between the calls. All of these calls have the same queries and options, a query_gradient, and the
// same `open`, which nobody else writes. The first call alone reads the output, lse and lse_gradient.
struct OpenQueries {
  bool first = false;  // the first call
  bool last = false;   // the last call: it alone writes dQ
};

struct AttentionProblem {
  std::int64_t batch = 1;
  std::int64_t seq_q = 0;
  std::int64_t seq_k = 0;
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;              // divides heads_q
  std::int64_t head_dim = 0;              // a multiple of 8, 8 to 256
  DType dtype = DType::f32;               // of Q, K, V, O and their gradients; f64 on the reference alone
  std::optional<DType> output_dtype{};    // of O and dO: f32 or dtype; by default dtype
  std::optional<DType> gradient_dtype{};  // of dQ, dK and dV: f32 or dtype; by default dtype
  float scale = 0;                        // 0: 1 / sqrt(head_dim)
  float softcap = 0;                      // scores <- softcap * tanh(scores / softcap); 0: off
  bool sinks = false;                     // one learned logit per query head joins every softmax
  bool resume = false;                    // forward goes on from the f32 output and lse of earlier keys
  bool add_gradients = false;             // backward adds to the dQ, dK and dV that are there, in f32
  // If it is set, dQ is written, not added to, and may be in f32 or in dtype. Set it only where
  // attention_open_bytes returns more than 0.
  std::optional<OpenQueries> open_queries{};
  bool deterministic =
      true;  // false: where that is faster, gradients may differ in their last bits from run to run
  // Where the workspace of backward would be larger than this, backward runs in parts, one sequence or one
  // group of K/V heads after the other, in a smaller workspace and with the same bits. Dilated heads are not
  // cut into groups, sequences with sinks not into parts, and open queries not at all.
  std::int64_t most_backward_bytes = std::numeric_limits<std::int64_t>::max();
  // Set in a part of a larger problem: sequences and K/V heads of the larger one, so that a part has its
  // bits.
  std::optional<KeyHeads> whole{};
  Mask mask{};
  // Queries and keys that are chunks of a longer sequence. By default the keys are the whole sequence, and
  // the last query stands at the last key.
  std::optional<AttentionChunk> chunk{};
  // Every row of every tensor starts at a multiple of so many bytes, a power of two up to 16, from the
  // tensor's address. attention_forward and attention_backward set it from the strides of their views.
  std::int64_t row_alignment_bytes = 16;

  [[nodiscard]] DType dtype_of_output() const { return output_dtype.value_or(dtype); }
  [[nodiscard]] DType dtype_of_gradients() const { return gradient_dtype.value_or(dtype); }
  // Of lse and of sums: f32, or f64 where the tensors are f64.
  [[nodiscard]] DType dtype_of_sums() const { return dtype == DType::f64 ? DType::f64 : DType::f32; }
  // The position of the first query: below 0 where a problem that is no chunk has more queries than keys.
  [[nodiscard]] std::int64_t query_start() const { return chunk ? chunk->query_start : seq_k - seq_q; }
  [[nodiscard]] std::int64_t key_start() const { return chunk ? chunk->key_start : 0; }
  // Whether every query stands at the position of a key and every key at that of a query.
  [[nodiscard]] bool same_positions() const { return query_start() == key_start() && seq_q == seq_k; }
};

// Tensors in the problem's dtype may have any strides, with unit stride in head_dim; the others are dense
// unless their line says otherwise. Where the problem's dtype is f64, so is what is f32 here. Every row has
// to be finite, also those that no query sees: masked probabilities are zeros, and zero times infinity is
// not.
struct AttentionForward {
  TensorView query;            // [batch, seq_q, heads_q, head_dim]
  TensorView key;              // [batch, seq_k, heads_kv, head_dim]
  TensorView value;            // [batch, seq_k, heads_kv, head_dim]
  TensorView sinks;            // [heads_q] f32, where the problem has sinks
  TensorView document_starts;  // [batch, max_documents + 1] i32: positions, rising from 0; what follows is
                               // one more document
  TensorView blocks;  // [batch, heads_kv, ceil(seq_q / block_rows), max_blocks_per_row] i32, rising, then -1:
                      // tiles of the chunk's keys; any strides, also 0, but unit stride in the last dimension
  TensorView output;  // [batch, seq_q, heads_q, head_dim] in the output's dtype
  TensorView lse;     // [batch, heads_q, seq_q] f32; -inf where a row sees nothing, and its output is 0
  TensorView saved;   // [saved_bytes] u8: what the implementation keeps for its backward
  // [batch, heads_q, seq_q] f64, or empty. Given to every chunk of a chain that resumes, zeros at first, it
  // lets the softmax of a row stay open between chunks, so that nothing is rounded there and the error does
  // not grow with the chain. Where it is above 0 the row is open: the output is not divided by it yet, and
  // lse is the exponent of 2 that the sum is relative to. Rows of the family may leave it alone.
  // close_attention ends the chain.
  TensorView row_sum{};
};

struct AttentionBackward {
  AttentionForward forward;    // its inputs and its results
  TensorView output_gradient;  // [batch, seq_q, heads_q, head_dim] in the output's dtype
  TensorView lse_gradient;     // [batch, heads_q, seq_q] f32, or empty for zero
  TensorView query_gradient;   // as query, key, value, sinks, in the gradients' dtype
  TensorView key_gradient;
  TensorView value_gradient;
  TensorView sinks_gradient;
  TensorView open{};  // [attention_open_bytes] u8, where the problem has open queries
};

using AttentionImplementation = Implementation<AttentionProblem, AttentionForward, AttentionBackward>;

// Fastest first, the reference last.
[[nodiscard]] std::span<const AttentionImplementation> attention_implementations();

// Validates, picks the implementation (or takes the pinned one), takes its workspace from the Context and
// runs it. Where none serves, an error says why each does not. Forward and backward of a problem have to run
// on the same implementation.
//
// Attention over a sequence may be computed in chunks of its keys, in any order:
// - Forward of a chunk gives the output and lse of its keys alone. They are merged with merge_attention, or
//   the next chunk resumes from them.
// - Sinks are part of one chunk: `sinks` is set in the problem of that chunk and in no other.
// - Backward of every chunk is given the output and lse of the whole, in place of its own, and the whole's
//   output_gradient and lse_gradient. dQ is then the sum over chunks of keys, dK and dV are the sums over
//   chunks of queries, and the chunk with sinks gives dSink of its queries.
void attention_forward(Context& context, const AttentionProblem& problem, const AttentionForward& views,
                       std::string_view pinned = {});
void attention_backward(Context& context, const AttentionProblem& problem, const AttentionBackward& views,
                        std::string_view pinned = {});

// The same in a workspace that the caller took before: a loop over chunks takes one for all of them. It holds
// at least attention_workspace_bytes of the problem.
void attention_forward(Context& context, const AttentionProblem& problem, const AttentionForward& views,
                       const TensorView& workspace, std::string_view pinned);
void attention_backward(Context& context, const AttentionProblem& problem, const AttentionBackward& views,
                        const TensorView& workspace, std::string_view pinned);
// What the implementation that would be picked needs for a problem whose tensors are dense. Throws where none
// serves.
[[nodiscard]] std::int64_t attention_workspace_bytes(const AttentionProblem& problem,
                                                     const DeviceDescription& device, Pass pass,
                                                     std::string_view pinned = {});

// Returns the bytes that backward keeps of open queries, the same for every chunk of keys; 0 if the
// implementation that would be picked cannot keep them. Throws where none serves.
[[nodiscard]] std::int64_t attention_open_bytes(const AttentionProblem& problem,
                                                const DeviceDescription& device,
                                                std::string_view pinned = {});

// Attention of the same queries over some of their keys. Where lse is -inf a row has seen nothing; merging
// does not read its output then, so that a first partial result may be lse = -inf and any output.
struct AttentionPartial {
  TensorView output;  // [batch, seq_q, heads_q, head_dim] f32, any strides
  TensorView lse;     // [batch, heads_q, seq_q] f32, any strides
};

// into <- attention over the keys of both, which have none in common. A row that has seen nothing in either
// gets an output of 0.
void merge_attention(Context& context, const AttentionPartial& into, const AttentionPartial& from);

// output <- partial.output, divided by row_sum in every row that is open; there lse <- ln(2) * lse +
// ln(row_sum). `output` has the shape of partial.output, is f32, bf16 or f16, and may be partial.output.
void close_attention(Context& context, const AttentionPartial& partial, const TensorView& row_sum,
                     const TensorView& output);

// The mask of one head of one sequence; with mixed dilation, of one of its patterns.
[[nodiscard]] MaskView mask_view(const AttentionProblem& problem, const AttentionForward& views,
                                 std::int64_t batch, std::int64_t head, int pattern = 0);

// Throws with the value that is wrong.
void validate(const AttentionProblem& problem);

// (query, key) pairs of one head of one sequence that causal and window leave, exactly. Documents, dilation
// and blocks leave fewer, depending on the batch.
[[nodiscard]] std::int64_t visible_pairs(const AttentionProblem& problem);

// Pairs of all heads of one sequence that causal, window and dilation leave, exactly up to 2^53.
[[nodiscard]] double pairs_of_all_heads(const AttentionProblem& problem);

// Arithmetic of the pass: 4 d per pair forward, 10 d backward, over the pairs that causal, window and
// dilation leave.
[[nodiscard]] double flops(const AttentionProblem& problem, Pass pass);

// Bytes that have to move at least: every input read once, every output written once.
[[nodiscard]] std::int64_t minimum_bytes(const AttentionProblem& problem, Pass pass);

}  // namespace headroom
