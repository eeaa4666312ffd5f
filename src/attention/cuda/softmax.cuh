// The online softmax of a warpgroup's scores on Hopper.
#pragma once

#include <cmath>

#include "cuda/ptx/warp.h"

namespace headroom::cuda {

// The running softmax of a thread's two rows (r and r + 8 of its warp's sixteen), in units of log2.
struct Softmax {
  static constexpr float kNothing = -INFINITY;
  // Sums and probabilities stay in range while scores exceed the maximum they were started with by less than
  // this power of two.
  static constexpr float kSlack = 8;

  float maximum[2] = {kNothing, kNothing};
  float sum[2] = {0, 0};  // of this thread's columns

  // Maxima rise to new scores; says whether earlier sums and outputs have to be multiplied, and by what. A
  // thread looks at its own columns only: most tiles raise no maximum, and then nobody has to be asked.
  template <int kScores>
  __device__ __forceinline__ bool raise(const float (&scores)[kScores], float scale_log2,
                                        float (&factor)[2]) {
    float highest[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
    for (int i = 4; i < kScores; ++i) highest[i % 4] = fmaxf(highest[i % 4], scores[i]);
    const float own[2] = {fmaxf(highest[0], highest[1]), fmaxf(highest[2], highest[3])};
    const bool rises = __any_sync(
        0xFFFFFFFF, own[0] * scale_log2 > maximum[0] + kSlack || own[1] * scale_log2 > maximum[1] + kSlack);
    if (rises) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float of_row = fmaxf(own[r], __shfl_xor_sync(0xFFFFFFFF, own[r], 1));
        of_row = fmaxf(of_row, __shfl_xor_sync(0xFFFFFFFF, of_row, 2)) * scale_log2;
        factor[r] = 1;
        if (of_row > maximum[r] + kSlack) {
          factor[r] = ptx::exp2_approximate(maximum[r] - of_row);
          maximum[r] = of_row;
        }
        sum[r] *= factor[r];
      }
    }
    return rises;
  }

  // Probabilities of the scores from kBegin to kEnd as if none exceeded the maximum: most tiles have none
  // that does, and to look for the highest takes half as long as to exponentiate. `total` says afterwards.
  template <int kBegin, int kEnd, int kScores>
  __device__ __forceinline__ void guess(const float (&scores)[kScores], float scale_log2,
                                        float (&probabilities)[kScores], float (&total)[2]) const {
#pragma unroll
    for (int i = kBegin; i < kEnd; ++i) {
      const int r = i % 4 / 2;
      // The maximum of a row that has seen nothing is -inf, and its total inf.
      probabilities[i] = ptx::exp2_approximate(fmaf(scores[i], scale_log2, -maximum[r]));
      total[r] += probabilities[i];
    }
  }
  // Whether that was right. Where no score exceeds the maximum by kSlack, no total is over this; where one
  // does and no total is, probabilities are still in range.
  template <int kScores>
  [[nodiscard]] static __device__ __forceinline__ bool guessed_right(const float (&total)[2]) {
    constexpr float kMost = kScores / 2 * (1 << static_cast<int>(kSlack));
    static_assert(kMost < 65504, "f16 has no larger numbers");
    return __all_sync(0xFFFFFFFF, total[0] <= kMost && total[1] <= kMost);
  }

  // Replaces scores by probabilities, those from kBegin to kEnd.
  template <int kBegin, int kEnd, int kScores>
  __device__ __forceinline__ void exponentiate(float (&scores)[kScores], float scale_log2) {
    const float shift[2] = {maximum[0] == kNothing ? 0 : -maximum[0],
                            maximum[1] == kNothing ? 0 : -maximum[1]};
    float total[2] = {0, 0};
#pragma unroll
    for (int i = kBegin; i < kEnd; ++i) {
      const int r = i % 4 / 2;
      scores[i] = ptx::exp2_approximate(fmaf(scores[i], scale_log2, shift[r]));
      total[r] += scores[i];
    }
    sum[0] += total[0];
    sum[1] += total[1];
  }
};

}  // namespace headroom::cuda
