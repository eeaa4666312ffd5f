// The online softmax of a warpgroup's scores on Hopper.
#pragma once

#include <cmath>

#include "cuda/ptx/warp.h"

namespace headroom::cuda {

// The running softmax of a thread's two rows (r and r + 8 of its warp's sixteen), in units of log2.
struct Softmax {
  static constexpr float kNothing = -INFINITY;
  // Sums stay exact while scores exceed the maximum they were started with by less than this power of two.
  static constexpr float kSlack = 8;

  float maximum[2] = {kNothing, kNothing};
  float sum[2] = {0, 0};  // of this thread's columns

  // Replaces scores by probabilities; says by what earlier sums and outputs have to be multiplied, and
  // whether at all.
  template <int kScores>
  __device__ __forceinline__ bool add(float (&scores)[kScores], float scale_log2, float (&factor)[2]) {
    bool rescale = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float highest = scores[2 * r];
#pragma unroll
      for (int i = 0; i < kScores; i += 4)
        highest = fmaxf(highest, fmaxf(scores[i + 2 * r], scores[i + 2 * r + 1]));
      highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFF, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFF, highest, 2)) * scale_log2;
      factor[r] = 1;
      if (highest > maximum[r] + kSlack) {
        factor[r] = ptx::exp2_approximate(maximum[r] - highest);
        maximum[r] = highest;
        rescale = true;
      }
      const float shift = maximum[r] == kNothing ? 0 : -maximum[r];
      float total = 0;
#pragma unroll
      for (int i = 0; i < kScores; i += 4) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& score = scores[i + 2 * r + c];
          score = ptx::exp2_approximate(fmaf(score, scale_log2, shift));
          total += score;
        }
      }
      sum[r] = sum[r] * factor[r] + total;
    }
    return __any_sync(0xFFFFFFFF, rescale);
  }
};

}  // namespace headroom::cuda
