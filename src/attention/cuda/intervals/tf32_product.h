// Products of tiles in shared memory on tensor cores in tf32, a warp at a time (mma m16n8k8, from compute
// capability 8.0). With three terms every f32 is split into a tf32 and the tf32 nearest to the rest:
// a b ~ A B + A b' + a' B, within 2^-21 of each product. Tensor cores round sums towards zero, which drifts:
// a chain of kChain steps starts from zero and is added to the sum by the FMA units, which round to nearest.
#pragma once

#include "cuda/device_code.h"

namespace headroom::cuda {

// d <- d + a b; a: 16 x 8, b: 8 x 8. Lane 4 g + t holds a(g, t), a(g + 8, t), a(g, t + 4), a(g + 8, t + 4);
// b(t, g), b(t + 4, g); d(g, 2 t), d(g, 2 t + 1), d(g + 8, 2 t), d(g + 8, 2 t + 1).
__device__ __forceinline__ void warp_multiply_tf32(float (&d)[4], const std::uint32_t (&a)[4],
                                                   const std::uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  ptx::multiply_tf32(d, a, b);
#elif defined(__CUDA_ARCH__)
  __trap();
#elif !defined(__CUDACC__)
  multiply_tf32_on_host(d, a, b);
#endif
}

// x = big + small + what is below 2^-22 of it. Tensor cores ignore the lowest 13 bits of what they read.
struct Tf32Parts {
  std::uint32_t big;
  std::uint32_t small;

  __device__ static Tf32Parts of(float x) {
    constexpr std::uint32_t kHalfUnit = 0x1000;
    const std::uint32_t big = (__float_as_uint(x) + kHalfUnit) & 0xffffe000u;
    return {big, __float_as_uint(x - __uint_as_float(big)) + kHalfUnit};
  }
};

// M: sixteens of query rows per warp; Terms: 3, or 1 for plain tf32; Halves: 2 where two warps share their
// rows and each has half of the columns of every product.
template <int M, int Terms, int Halves = 1>
struct Tf32Product {
  static constexpr int kHalves = Halves;
  static constexpr int kKeys = 64 / Halves;  // of a warp's scores
  static constexpr int kRows = 16 * M;
  static constexpr int kSlots = 2 * M;
  static constexpr int kPad = 8;
  static constexpr int kPeers = 4;
  static constexpr int kChain =
      2;  // steps of eight; reasoned (24 roundings towards zero against 6), not tuned

  __device__ static int row(int lane, int slot) { return lane / 4 + 8 * slot; }
  __device__ static int column(int lane, int e) { return e / 4 * 8 + lane % 4 * 2 + e % 2; }

  static constexpr int kScores = M * kKeys / 2;
  __device__ static constexpr int score_slot(int e) { return e / (kKeys / 2) * 2 + e % 4 / 2; }
  __device__ static int score_column(int lane, int e) { return column(lane, e % (kKeys / 2)); }

  template <int N>
  static constexpr int kSums = M * N / Halves / 2;
  template <int N>
  __device__ static constexpr int sum_slot(int e) {
    return e / (N / Halves / 2) * 2 + e % 4 / 2;
  }
  template <int N>
  __device__ static int sum_column(int lane, int e) {
    return column(lane, e % (N / Halves / 2));
  }

  template <int N>
  static constexpr int kSumWidth = 2;

  template <int N>
  static constexpr int kKeySums = N / Halves / 2;
  template <int N>
  __device__ static int key_sum_row(int lane, int e) {
    return lane / 4 + 8 * (e % 4 / 2);
  }
  template <int N>
  __device__ static int key_sum_column(int lane, int e) {
    return column(lane, e);
  }

  struct Left {
    std::uint32_t big[4];
    std::uint32_t small[4];

    __device__ void set(int i, float x) {
      const Tf32Parts parts = Tf32Parts::of(x);
      big[i] = parts.big;
      small[i] = parts.small;
    }
  };

  // sums(m, n) <- sums(m, n) + a chain of products, for every m and n; right(n, i) gives b of step i.
  // Smallest terms first; columns abreast, for a product waits for the one before it on the same sums.
  template <int Rows, int Columns, class Right>
  __device__ static void add_chain(float* sums, const Left (&left)[Rows][kChain], const Right& right) {
    constexpr int kAbreast = Columns < 4 ? Columns : 4;
#pragma unroll
    for (int n = 0; n < Columns; n += kAbreast) {
      float chain[Rows][kAbreast][4] = {};
#pragma unroll
      for (int i = 0; i < kChain; ++i) {
        std::uint32_t big[kAbreast][2];
        std::uint32_t small[kAbreast][2];
#pragma unroll
        for (int j = 0; j < kAbreast; ++j) {
          const float2 b = right(n + j, i);
          const Tf32Parts first = Tf32Parts::of(b.x);
          const Tf32Parts second = Tf32Parts::of(b.y);
          big[j][0] = first.big;
          big[j][1] = second.big;
          small[j][0] = first.small;
          small[j][1] = second.small;
        }
#pragma unroll
        for (int term = 3 - Terms; term < 3; ++term) {
#pragma unroll
          for (int j = 0; j < kAbreast; ++j) {
#pragma unroll
            for (int m = 0; m < Rows; ++m) {
              const Left& a = left[m][i];
              warp_multiply_tf32(chain[m][j], term == 0 ? a.small : a.big, term == 1 ? small[j] : big[j]);
            }
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kAbreast; ++j) {
#pragma unroll
        for (int m = 0; m < Rows; ++m) {
#pragma unroll
          for (int r = 0; r < 4; ++r) sums[(m * Columns + n + j) * 4 + r] += chain[m][j][r];
        }
      }
    }
  }

  // scores <- scores + A B^T. Slots t and t + 4 of a step stand for columns 2 t and 2 t + 1: pairs are read
  // as one.
  template <int N>
  __device__ static void add_scores(float (&scores)[kScores], const float* a, const float* b, int lane) {
    constexpr int kStride = N + kPad;
    const float* a_row = a + lane / 4 * kStride + lane % 4 * 2;
    const float* b_row = b + lane / 4 * kStride + lane % 4 * 2;
#pragma unroll 1
    for (int k = 0; k < N; k += 8 * kChain) {
      Left left[M][kChain];
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int i = 0; i < kChain; ++i) {
          const float* at = a_row + 16 * m * kStride + k + 8 * i;
          const float2 top = *reinterpret_cast<const float2*>(at);
          const float2 bottom = *reinterpret_cast<const float2*>(at + 8 * kStride);
          left[m][i].set(0, top.x);
          left[m][i].set(1, bottom.x);
          left[m][i].set(2, top.y);
          left[m][i].set(3, bottom.y);
        }
      }
      add_chain<M, kKeys / 8>(scores, left, [&](int n, int i) {
        return *reinterpret_cast<const float2*>(b_row + 8 * n * kStride + k + 8 * i);
      });
    }
  }

  // sums <- sums + P B
  template <int N>
  __device__ static void add_sums(float (&sums)[kSums<N>], const float* p, int p_stride, const float* b,
                                  int lane) {
    constexpr int kStride = N + kPad;
    const float* p_row = p + lane / 4 * p_stride + lane % 4;
    const float* b_row = b + lane % 4 * kStride + lane / 4;
#pragma unroll 1
    for (int k = 0; k < 64; k += 8 * kChain) {
      Left left[M][kChain];
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int i = 0; i < kChain; ++i) {
          const float* at = p_row + 16 * m * p_stride + k + 8 * i;
          left[m][i].set(0, at[0]);
          left[m][i].set(1, at[8 * p_stride]);
          left[m][i].set(2, at[4]);
          left[m][i].set(3, at[8 * p_stride + 4]);
        }
      }
      add_chain<M, N / Halves / 8>(sums, left, [&](int n, int i) {
        const float* at = b_row + (k + 8 * i) * kStride + 8 * n;
        return float2{at[0], at[4 * kStride]};
      });
    }
  }

  // sums <- sums + P^T B
  template <int N>
  __device__ static void add_key_sums(float (&sums)[kKeySums<N>], const float* p, int p_stride,
                                      const float* b, int rows, int lane) {
    constexpr int kStride = N + kPad;
    const float* p_keys = p + lane % 4 * p_stride + lane / 4;
    const float* b_row = b + lane % 4 * kStride + lane / 4;
#pragma unroll 1
    for (int k = 0; k < rows; k += 8 * kChain) {
      Left left[1][kChain];
#pragma unroll
      for (int i = 0; i < kChain; ++i) {
        const float* at = p_keys + (k + 8 * i) * p_stride;
        left[0][i].set(0, at[0]);
        left[0][i].set(1, at[8]);
        left[0][i].set(2, at[4 * p_stride]);
        left[0][i].set(3, at[4 * p_stride + 8]);
      }
      add_chain<1, N / Halves / 8>(sums, left, [&](int n, int i) {
        const float* at = b_row + (k + 8 * i) * kStride + 8 * n;
        return float2{at[0], at[4 * kStride]};
      });
    }
  }
};

}  // namespace headroom::cuda
