// The SwiGLU MLP, y = (silu(x gate^T) * (x up^T)) down^T, a tile of tokens at a time: what is as wide as the
// MLP exists for one tile only, unless it is kept. On a CPU the bits do not depend on the tile.
#pragma once

#include "headroom/memory/context.h"

namespace headroom {

struct MlpWeights {
  TensorView gate;       // [mlp, hidden]
  TensorView up;         // [mlp, hidden]
  TensorView down;       // [hidden, mlp]
  TensorView gate_up{};  // both as one matrix, [2 mlp, hidden]; empty where they do not lie side by side
};

struct MlpForward {
  TensorView x;  // [tokens, hidden]
  MlpWeights weights;
  TensorView y;           // [tokens, hidden]
  TensorView gate_up;     // [tokens, 2 mlp], kept for backward; empty: made again there
  TensorView residual{};  // [tokens, hidden], added to y; empty: nothing is
};
void mlp_forward(Context& context, const MlpForward& views, std::int64_t tile_tokens);

struct MlpBackward {
  MlpForward forward;               // its inputs and what was kept, which is overwritten; y is not read
  TensorView y_gradient;            // [tokens, hidden]
  TensorView x_gradient;            // [tokens, hidden], overwritten
  MlpWeights gradients;             // f32 or of the weights' dtype, added to; tiles are summed in f32
  bool gradients_are_zero = false;  // then the first tile need not read them; the bits are the same
};
void mlp_backward(Context& context, const MlpBackward& views, std::int64_t tile_tokens);

}  // namespace headroom
