// Vectors of eight floats: AVX2 with FMA and F16C. For sources compiled with these flags only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/levels.h"

namespace headroom::cpu::avx2 {

struct Vec {
  static constexpr int kLanes = vector_shape(SimdLevel::avx2).lanes;
  static constexpr int kColumns = vector_shape(SimdLevel::avx2).columns;
  __m256 v;

  [[gnu::always_inline]] static Vec zero() { return {_mm256_setzero_ps()}; }
  [[gnu::always_inline]] static Vec all(float x) { return {_mm256_set1_ps(x)}; }
  [[gnu::always_inline]] static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  [[gnu::always_inline]] void store(float* p) const { _mm256_storeu_ps(p, v); }

  static Vec load_bf16(const std::uint16_t* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
  }
  static Vec load_f16(const std::uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  void store_bf16(std::uint16_t* p) const {
    const __m256i word = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(word, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(word, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(word, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i kept = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m128i half = _mm_packus_epi32(_mm256_castsi256_si128(kept), _mm256_extracti128_si256(kept, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half);
  }
  void store_f16(std::uint16_t* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }

  // Lanes [begin, end) of x and `other` elsewhere; 0 <= begin, end <= kLanes.
  static Vec inside(Vec x, int begin, int end, Vec other) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lane);
    const __m256i inner = _mm256_andnot_si256(below, _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane));
    return {_mm256_blendv_ps(other.v, x.v, _mm256_castsi256_ps(inner))};
  }
  static void transpose(Vec* r) {
    __m256 t[8];
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i].v, r[i + 1].v);
      t[i + 1] = _mm256_unpackhi_ps(r[i].v, r[i + 1].v);
    }
    __m256 u[8];
    for (int i = 0; i < 8; i += 4) {
      for (int j = 0; j < 2; ++j) {
        u[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
        u[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
      }
    }
    for (int i = 0; i < 4; ++i) {
      r[i].v = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
      r[i + 4].v = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
  }
};

[[gnu::always_inline]] inline Vec operator+(Vec a, Vec b) {
  return {_mm256_add_ps(a.v, b.v)};
}
[[gnu::always_inline]] inline Vec operator-(Vec a, Vec b) {
  return {_mm256_sub_ps(a.v, b.v)};
}
[[gnu::always_inline]] inline Vec operator*(Vec a, Vec b) {
  return {_mm256_mul_ps(a.v, b.v)};
}
[[gnu::always_inline]] inline Vec operator/(Vec a, Vec b) {
  return {_mm256_div_ps(a.v, b.v)};
}
[[gnu::always_inline]] inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.v, b.v, c.v)};
}
[[gnu::always_inline]] inline Vec larger(Vec a, Vec b) {
  return {_mm256_max_ps(a.v, b.v)};
}
[[gnu::always_inline]] inline bool any_above(Vec a, Vec b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)) != 0;
}
inline float sum(Vec a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float maximum(Vec a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline Vec where_below(Vec a, Vec limit, Vec yes, Vec no) {
  return {_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(a.v, limit.v, _CMP_LT_OQ))};
}
inline Vec magnitude(Vec a) {
  return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)};
}
inline Vec with_sign(Vec a, Vec sign) {
  return {_mm256_or_ps(a.v, _mm256_and_ps(sign.v, _mm256_set1_ps(-0.0f)))};
}
inline Vec square_root(Vec a) {
  return {_mm256_sqrt_ps(a.v)};
}

// 2^x for x below 128. At -127 the exponent field becomes 0, so everything below, -inf too, gives exactly 0;
// the order of the maximum's operands lets NaN through. Minimax of degree 6 on [-1/2, 1/2] with 2^0 = 1:
// within 8e-8 relative, rounding included.
[[gnu::always_inline]] inline Vec exp2(Vec x) {
  const __m256 bounded = _mm256_max_ps(_mm256_set1_ps(-127.0f), x.v);
  const __m256 whole = _mm256_round_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 r = _mm256_sub_ps(bounded, whole);
  __m256 p = _mm256_set1_ps(0.00015353362f);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.0013398875f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.00961843692f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.0555033237f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.240226477f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.693147182f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
  return {_mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)))};
}

}  // namespace headroom::cpu::avx2
