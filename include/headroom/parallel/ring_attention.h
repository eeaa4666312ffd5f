// Ring attention: each rank has the queries, keys and values of its pieces, and gets the outputs and
// gradients of them. Q stays; K and V of other ranks arrive in two buffers, the next while the current one is
// used. Partial results are f32 from end to end, and are added in the order of the schedule: same bits every
// time.
#pragma once

#include "headroom/parallel/ring_schedule.h"

namespace headroom {

// The tensors of one rank, dense; tokens are those of its pieces, one piece after the other.
struct RingInputs {
  const Tensor& query;         // [batch, tokens, heads_q, head_dim]
  const Tensor& key;           // [batch, tokens, heads_kv, head_dim]
  const Tensor& value;         // [batch, tokens, heads_kv, head_dim]
  TensorView sinks;            // [heads_q] f32, where the problem has sinks
  TensorView document_starts;  // [batch, max_documents + 1] i32, of the whole sequence
  TensorView blocks;           // [batch, heads_kv, tiles of the rank's queries, max_blocks_per_row] i32: key
                               // tiles counted in the whole sequence
};

struct RingForward {
  RingInputs inputs;
  TensorView output;  // [batch, tokens, heads_q, head_dim] in the output's dtype, dense
  TensorView lse;     // [batch * heads_q * tokens] f32: of each piece [batch, heads_q, tokens of the piece]
};

struct RingBackward {
  RingForward forward;         // its inputs and its results
  TensorView output_gradient;  // as output
  TensorView lse_gradient;     // as lse, or empty for zero
  // As query, key, value and sinks; of the first three, unless they are f64, other heads may lie between
  // those of one token and of the next. Every rank gets all of sinks_gradient.
  TensorView query_gradient;
  TensorView key_gradient;
  TensorView value_gradient;
  TensorView sinks_gradient;
};

// Runs a rank's part of the schedule. Every rank calls it. What it needs it takes before it starts: two
// transfers of K and V and, unless the output is f32, an f32 output; in backward f32 sums of dQ, dK and dV
// where those are not f32, and three transfers of f32 dK
// and dV. A ring of one member is attention as on one rank, and takes none of that.
//
// The Context is one of ranks x rings ranks. Rings run side by side, each with heads of its own: rank r is
// member r / rings of ring r % rings. sinks_gradient then has the heads of all rings, one ring after the
// other. Where the Context has a multiple of that many ranks, they are groups in a row, each of which does
// this with sequences of its own; a problem with sinks is refused there.
void ring_attention_forward(Context& context, const RingSchedule& schedule, const RingForward& views,
                            std::string_view pinned = {}, int rings = 1);
void ring_attention_backward(Context& context, const RingSchedule& schedule, const RingBackward& views,
                             std::string_view pinned = {}, int rings = 1);

// The attention of one pair of chunks, in a ring of several members, of which none has more than
// `most_tokens`. The first pair of a piece has the sinks, and nothing to resume from. In backward queries are
// open where dQ is narrower than its sums and the implementation can keep them; `open_queries->last` is left
// false, the caller sets it.
[[nodiscard]] AttentionProblem problem_of_pair(const AttentionProblem& of_ring, std::int64_t most_tokens,
                                               const ChunkPair& pair, Pass pass,
                                               const DeviceDescription& device, std::string_view pinned = {});

// The part of a rank's lse that belongs to one of its pieces: [batch, heads_q, tokens of the piece].
[[nodiscard]] TensorView lse_of_piece(const RingSchedule& schedule, int rank, const TensorView& lse,
                                      std::int64_t piece);

}  // namespace headroom
