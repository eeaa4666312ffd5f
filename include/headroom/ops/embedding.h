// Embedding: rows of a table by token.
#pragma once

#include <cstdint>
#include <optional>

#include "headroom/memory/context.h"

namespace headroom {

// x[t] <- table[ids[t]]
//   table  [vocabulary, dim] f32, bf16 or f16
//   ids    [tokens] i32; one outside of the table is an error that names it
//   x      [tokens, dim], the table's dtype
void embedding_forward(Context& context, const TensorView& table, const TensorView& ids, const TensorView& x);

// table_gradient[ids[t]] += dx[t], repeated tokens in their order; tokens that are pad_token are left out
//   table_gradient  [vocabulary, dim] f32, or dx's dtype: summed in f32 and rounded once
void embedding_backward(Context& context, const TensorView& ids, const TensorView& x_gradient,
                        const TensorView& table_gradient, std::optional<std::int64_t> pad_token = {});

}  // namespace headroom
