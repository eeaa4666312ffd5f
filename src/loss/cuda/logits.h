// A token's logits in a GPU's memory, read by one block of threads: a batch of eights at a time, and the
// statistics of a softmax.
#pragma once

#include "ops/cuda/eights.h"

namespace headroom::cuda {

inline constexpr int kTokenThreads = 1024;
inline constexpr int kBatch = 4;  // times eight logits that a thread loads before it waits
inline constexpr float kLog2E = 1.44269504F;

__device__ __forceinline__ float minus_infinity() {
  return bits_to_float(0xff800000u);
}

// Of some of a token's logits: the largest, the sum of e^(logit - max), and the sum of the logits.
struct Statistics {
  float max = minus_infinity();
  float sum = 0;
  float logits = 0;

  __device__ __forceinline__ void add(const Statistics& other) {
    const float most = other.max > max ? other.max : max;
    // Where both have nothing, most is -inf and the sums are 0.
    sum = (max == most ? sum : sum * power_of_two((max - most) * kLog2E)) +
          (other.max == most ? other.sum : other.sum * power_of_two((other.max - most) * kLog2E));
    max = most;
    logits += other.logits;
  }
};

template <bool kCapped>
__device__ __forceinline__ float capped(float logit, float softcap) {
  return kCapped ? softcap * tanhf(logit / softcap) : logit;
}

// Some of a thread's logits.
template <DType kType>
struct Batch {
  StoredEight<kType> stored[kBatch];
  std::int64_t column;  // the first
  std::int64_t words;

  static constexpr std::int64_t kStride = kTokenThreads * kEight;  // from one eight to the next

  __device__ __forceinline__ std::int64_t left(int b) const { return words - (column + b * kStride); }
};

// body(batch) for all of a thread's; kWhole: eights are aligned and end with the row.
template <bool kWhole, DType kType, class Body>
__device__ __forceinline__ void for_batches(const Stored<kType>* row, std::int64_t words, const Body& body) {
  Batch<kType> batch{};
  batch.words = words;
  for (batch.column = threadIdx.x * kEight; batch.column < words;
       batch.column += kBatch * Batch<kType>::kStride) {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const Stored<kType>* from = row + batch.column + b * Batch<kType>::kStride;
      if constexpr (kWhole) {
        if (batch.left(b) > 0) batch.stored[b] = StoredEight<kType>::load(from);
      } else {
#pragma unroll
        for (int j = 0; j < kEight; ++j) {
          if (j < batch.left(b)) batch.stored[b].set(j, from[j]);
        }
      }
    }
    body(batch);
  }
}

// Of the logits that a thread reads.
template <bool kWhole, bool kCapped, DType kType>
__device__ __forceinline__ Statistics thread_statistics(const Stored<kType>* row, std::int64_t words,
                                                        float softcap) {
  Statistics own;
  for_batches<kWhole, kType>(row, words, [&](const Batch<kType>& batch) {
    Statistics some;
    const auto for_logits = [&](const auto& body) {
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
#pragma unroll
        for (int j = 0; j < kEight; ++j) {
          if ((kWhole ? 0 : j) < batch.left(b)) {
            body(capped<kCapped>(batch.stored[b].wide(j), softcap));
          }
        }
      }
    };
    for_logits([&](float logit) {
      if (!(logit <= some.max)) some.max = logit;  // NaN too
      some.logits += logit;
    });
    for_logits([&](float logit) { some.sum += power_of_two((logit - some.max) * kLog2E); });
    own.add(some);
  });
  return own;
}

// The first <- all of the block's. To be followed by a barrier.
__device__ __forceinline__ void merge_block(Statistics* shared) {
  for (unsigned half = kTokenThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x].add(shared[threadIdx.x + half]);
  }
}

// What turns a token's logits into their gradients.
struct GradientRule {
  float max;
  float factor;
  float smoothing;
  float share;
  std::int64_t label;  // its column; outside of the row: there is none
};
inline constexpr std::int64_t kEveryColumn = -2;  // in place of a label: where it is wrong, all become NaN

// dZ <- factor * e^(Z - max) - smoothing, less the label's share, through the softcap; in place of Z
template <bool kWhole, bool kCapped, DType kType>
__device__ __forceinline__ void store_gradients(Stored<kType>* row, std::int64_t words, float softcap,
                                                const GradientRule& rule) {
  for_batches<kWhole, kType>(row, words, [&](const Batch<kType>& batch) {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (batch.left(b) <= 0) continue;
      const std::int64_t column = batch.column + b * Batch<kType>::kStride;
      Eight gradients;
#pragma unroll
      for (int j = 0; j < kEight; ++j) {
        const float logit = capped<kCapped>(batch.stored[b].wide(j), softcap);
        float gradient = rule.factor * power_of_two((logit - rule.max) * kLog2E) - rule.smoothing;
        if (column + j == rule.label || rule.label == kEveryColumn) gradient -= rule.share;
        if constexpr (kCapped) {
          const float part = logit / softcap;
          gradient *= 1 - part * part;
        }
        gradients.at[j] = gradient;
      }
      if constexpr (kWhole) {
        store_eight<kType>(row + column, Whole{}, true, gradients);
      } else {
        store_eight<kType>(row + column, batch.left(b), false, gradients);
      }
    }
  });
}

// body.operator()<kWhole, kCapped>(), as the rows of logits are.
template <DType kType, class Body>
void with_logits(const RowsOf<kType>& logits, std::int64_t words, float softcap, const Body& body) {
  if (softcap != 0) {
    body.template operator()<false, true>();
  } else if (logits.aligned && words % kEight == 0) {
    body.template operator()<true, false>();
  } else {
    body.template operator()<false, false>();
  }
}

}  // namespace headroom::cuda
