// Rotary position embedding, Hugging Face's half-split convention: elements (i, i + head_dim / 2) of a head
// turn by position * inverse[i]. There is no table of angles: cos and sin are computed where they are used.
#pragma once

#include "headroom/core/kernel_family.h"
#include "headroom/memory/context.h"
#include "headroom/ops/rope_frequencies.h"

namespace headroom {

// In place. Forward turns by the angle; backward turns a gradient by its negative, which is the transpose
// (and, where magnitude is 1, the inverse).
//   x          [tokens, heads, head_dim] f32, bf16 or f16, unit stride in head_dim
//   positions  [tokens] i32
void rope(Context& context, const TensorView& x, const TensorView& positions,
          const RopeFrequencies& frequencies, Pass pass);

// By which angles, for operations that turn heads in the same pass as they do something else.
struct RopeCall {
  TensorView positions;  // [tokens] i32
  const RopeFrequencies& frequencies;
};

}  // namespace headroom
