// Products of tiles in shared memory on the FMA units, a warp at a time. Tiles are row-major with a stride
// that keeps four-word reads free of bank conflicts. A warp is 4 x 8 lanes; a lane owns rows r, r + 4, ...
// of its warp's rows, so that a row lies in 8 neighbouring lanes. Per step of four along the contraction a
// lane reads 4 M + 8 vectors for 128 M multiply-adds.
#pragma once

#include "cuda/device_code.h"

namespace headroom::cuda {

// M: sixteens of query rows per warp.
template <int M>
struct FmaProduct {
  static constexpr int kHalves = 1;     // warps that share their rows
  static constexpr int kRows = 16 * M;  // of a warp
  static constexpr int kSlots = 4 * M;  // different rows of a lane
  static constexpr int kPad = 4;        // words between rows of a tile
  static constexpr int kPeers = 8;      // lanes that share a row

  // Columns of a lane in a tile of N: groups of up to four.
  template <int N>
  struct Columns {
    static constexpr int kCount = N / 8;
    static constexpr int kWidth = kCount < 4 ? kCount : 4;
    __device__ static int at(int lane, int i) {
      return i / kWidth * 8 * kWidth + lane % 8 * kWidth + i % kWidth;
    }
  };

  __device__ static int row(int lane, int slot) { return lane / 8 + 4 * slot; }

  // Scores: kRows x 64.
  static constexpr int kScores = 8 * kSlots;
  __device__ static constexpr int score_slot(int e) { return e / 8; }
  __device__ static int score_column(int lane, int e) { return lane % 8 + e % 8 * 8; }

  // Sums over keys: kRows x N.
  template <int N>
  static constexpr int kSums = kSlots * Columns<N>::kCount;
  template <int N>
  __device__ static constexpr int sum_slot(int e) {
    return e / Columns<N>::kCount;
  }
  template <int N>
  __device__ static int sum_column(int lane, int e) {
    return Columns<N>::at(lane, e % Columns<N>::kCount);
  }

  // Neighbouring columns that follow each other in a lane.
  template <int N>
  static constexpr int kSumWidth = Columns<N>::kWidth;

  // Sums over queries: 16 keys x N.
  template <int N>
  static constexpr int kKeySums = 4 * Columns<N>::kCount;
  template <int N>
  __device__ static int key_sum_row(int lane, int e) {
    return lane / 8 * 4 + e / Columns<N>::kCount;
  }
  template <int N>
  __device__ static int key_sum_column(int lane, int e) {
    return Columns<N>::at(lane, e % Columns<N>::kCount);
  }

  // scores <- scores + A B^T; A: the warp's rows, B: 64 rows, both N wide
  template <int N>
  __device__ static void add_scores(float (&scores)[kScores], const float* a, const float* b, int lane) {
    constexpr int kStride = N + kPad;
    const float* a_row = a + lane / 8 * kStride;
    const float* b_row = b + lane % 8 * kStride;
#pragma unroll 2
    for (int k = 0; k < N; k += 4) {
      float4 left[kSlots];
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
        left[s] = *reinterpret_cast<const float4*>(a_row + 4 * s * kStride + k);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float4 right = *reinterpret_cast<const float4*>(b_row + 8 * j * kStride + k);
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
          float& sum = scores[s * 8 + j];
          sum = fmaf(left[s].x, right.x, sum);
          sum = fmaf(left[s].y, right.y, sum);
          sum = fmaf(left[s].z, right.z, sum);
          sum = fmaf(left[s].w, right.w, sum);
        }
      }
    }
  }

  template <int N>
  __device__ static void load_columns(float (&values)[Columns<N>::kCount], const float* row, int lane) {
#pragma unroll
    for (int i = 0; i < Columns<N>::kCount; i += Columns<N>::kWidth) {
      const float* from = row + Columns<N>::at(lane, i);
      if constexpr (Columns<N>::kWidth == 4) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        values[i] = four.x;
        values[i + 1] = four.y;
        values[i + 2] = four.z;
        values[i + 3] = four.w;
      } else {
        const float2 two = *reinterpret_cast<const float2*>(from);
        values[i] = two.x;
        values[i + 1] = two.y;
      }
    }
  }

  // sums <- sums + P B; P: the warp's rows x 64 at stride `p_stride`, B: 64 x N
  template <int N>
  __device__ static void add_sums(float (&sums)[kSums<N>], const float* p, int p_stride, const float* b,
                                  int lane) {
    constexpr int kStride = N + kPad;
    constexpr int kCount = Columns<N>::kCount;
    const float* p_row = p + lane / 8 * p_stride;
#pragma unroll 2
    for (int k = 0; k < 64; k += 4) {
      float4 left[kSlots];
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
        left[s] = *reinterpret_cast<const float4*>(p_row + 4 * s * p_stride + k);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float right[kCount];
        load_columns<N>(right, b + (k + i) * kStride, lane);
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
          const float factor = i == 0 ? left[s].x : i == 1 ? left[s].y : i == 2 ? left[s].z : left[s].w;
#pragma unroll
          for (int n = 0; n < kCount; ++n)
            sums[s * kCount + n] = fmaf(factor, right[n], sums[s * kCount + n]);
        }
      }
    }
  }

  // sums <- sums + P^T B; P: rows x 16 (the warp's keys) at stride `p_stride`, B: rows x N
  template <int N>
  __device__ static void add_key_sums(float (&sums)[kKeySums<N>], const float* p, int p_stride,
                                      const float* b, int rows, int lane) {
    constexpr int kStride = N + kPad;
    constexpr int kCount = Columns<N>::kCount;
    const float* p_keys = p + lane / 8 * 4;
#pragma unroll 4
    for (int r = 0; r < rows; ++r) {
      const float4 left = *reinterpret_cast<const float4*>(p_keys + r * p_stride);
      float right[kCount];
      load_columns<N>(right, b + r * kStride, lane);
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        sums[n] = fmaf(left.x, right[n], sums[n]);
        sums[kCount + n] = fmaf(left.y, right[n], sums[kCount + n]);
        sums[2 * kCount + n] = fmaf(left.z, right[n], sums[2 * kCount + n]);
        sums[3 * kCount + n] = fmaf(left.w, right[n], sums[3 * kCount + n]);
      }
    }
  }
};

}  // namespace headroom::cuda
