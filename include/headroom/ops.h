// Small operations on tensors.
#pragma once

#include "headroom/core/random.h"
#include "headroom/memory/context.h"
#include "headroom/ops/adamw.h"
#include "headroom/ops/elementwise.h"
#include "headroom/ops/embedding.h"
#include "headroom/ops/gradient_norm.h"
#include "headroom/ops/matmul.h"
#include "headroom/ops/mlp.h"
#include "headroom/ops/rms_norm.h"
#include "headroom/ops/rope.h"
#include "headroom/ops/store.h"
#include "headroom/ops/swiglu.h"

namespace headroom {

// element i <- low + (high - low) * random.uniform(i), in the order of a dense f32, bf16 or f16 tensor. The
// bits are the same on every device and with any number of threads; those of 16-bit types are those of f32,
// rounded. For a part of a tensor, `first` is the index of the part's first element.
void random_fill(Context& context, const TensorView& view, Random random, float low, float high,
                 std::int64_t first = 0);

}  // namespace headroom
