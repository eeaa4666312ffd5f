// Rows of K and V, or of their gradients, between a rank's tensors and what is sent: [batch, keys, heads_kv,
// head_dim] where every row is sent, otherwise the rows of one head after those of another.
#pragma once

#include "headroom/parallel/ring_schedule.h"

namespace headroom {

// A tensor in which the row of position p is row p - first.
struct PositionedRows {
  TensorView rows;  // [batch, rows, heads_kv, head_dim]
  std::int64_t first = 0;
};

// packed <- the transfer's rows.
void pack_rows(Context& context, const Transfer& transfer, const TensorView& packed,
               const PositionedRows& from);
// to <- the transfer's rows, and zeros in between.
void unpack_rows(Context& context, const Transfer& transfer, const PositionedRows& to,
                 const TensorView& packed);
// to <- to + the transfer's rows.
void add_packed_rows(Context& context, const Transfer& transfer, const PositionedRows& to,
                     const TensorView& packed);

}  // namespace headroom
