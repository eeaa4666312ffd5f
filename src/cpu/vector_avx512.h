// Vectors of sixteen floats: AVX-512 F, BW, DQ, VL. For sources compiled with these flags only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/levels.h"

namespace headroom::cpu::avx512 {

struct Vec {
  static constexpr int kLanes = vector_shape(SimdLevel::avx512).lanes;
  static constexpr int kColumns = vector_shape(SimdLevel::avx512).columns;
  __m512 v;

  [[gnu::always_inline]] static Vec zero() { return {_mm512_setzero_ps()}; }
  [[gnu::always_inline]] static Vec all(float x) { return {_mm512_set1_ps(x)}; }
  [[gnu::always_inline]] static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  [[gnu::always_inline]] void store(float* p) const { _mm512_storeu_ps(p, v); }

  static Vec load_bf16(const std::uint16_t* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
  }
  static Vec load_f16(const std::uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  void store_bf16(std::uint16_t* p) const {
    const __m512i word = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_epi32(_mm512_srli_epi32(word, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(word, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_or_epi32(rounded, nan, word, _mm512_set1_epi32(0x400000));
    const __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
  }
  void store_f16(std::uint16_t* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }

  // Lanes [begin, end) of this vector and `other` elsewhere; 0 <= begin, end <= kLanes.
  static Vec inside(Vec x, int begin, int end, Vec other) {
    const std::uint32_t mask = (0xffffffffu << begin) & ~(0xffffffffu << end);
    return {_mm512_mask_mov_ps(other.v, static_cast<__mmask16>(mask), x.v)};
  }
  static void transpose(Vec* r) {
    __m512 t[16];
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i].v, r[i + 1].v);
      t[i + 1] = _mm512_unpackhi_ps(r[i].v, r[i + 1].v);
    }
    for (int i = 0; i < 16; i += 4) {
      for (int j = 0; j < 2; ++j) {
        const __m512d low = _mm512_castps_pd(t[i + j]);
        const __m512d high = _mm512_castps_pd(t[i + j + 2]);
        r[i + 2 * j].v = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
        r[i + 2 * j + 1].v = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
      }
    }
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm512_shuffle_f32x4(r[i].v, r[i + 4].v, 0x88);
      t[i + 4] = _mm512_shuffle_f32x4(r[i].v, r[i + 4].v, 0xdd);
      t[i + 8] = _mm512_shuffle_f32x4(r[i + 8].v, r[i + 12].v, 0x88);
      t[i + 12] = _mm512_shuffle_f32x4(r[i + 8].v, r[i + 12].v, 0xdd);
    }
    for (int i = 0; i < 4; ++i) {
      r[i].v = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
      r[i + 8].v = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
      r[i + 4].v = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
      r[i + 12].v = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
  }
};

[[gnu::always_inline]] inline Vec operator+(Vec a, Vec b) {
  return {_mm512_add_ps(a.v, b.v)};
}
[[gnu::always_inline]] inline Vec operator-(Vec a, Vec b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
[[gnu::always_inline]] inline Vec operator*(Vec a, Vec b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
[[gnu::always_inline]] inline Vec operator/(Vec a, Vec b) {
  return {_mm512_div_ps(a.v, b.v)};
}
[[gnu::always_inline]] inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
[[gnu::always_inline]] inline Vec larger(Vec a, Vec b) {
  return {_mm512_max_ps(a.v, b.v)};
}
[[gnu::always_inline]] inline bool any_above(Vec a, Vec b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ) != 0;
}
inline float sum(Vec a) {
  return _mm512_reduce_add_ps(a.v);
}
inline float maximum(Vec a) {
  return _mm512_reduce_max_ps(a.v);
}
inline Vec where_below(Vec a, Vec limit, Vec yes, Vec no) {
  return {_mm512_mask_mov_ps(no.v, _mm512_cmp_ps_mask(a.v, limit.v, _CMP_LT_OQ), yes.v)};
}
inline Vec magnitude(Vec a) {
  return {_mm512_abs_ps(a.v)};
}
inline Vec with_sign(Vec a, Vec sign) {
  return {_mm512_or_ps(a.v, _mm512_and_ps(sign.v, _mm512_set1_ps(-0.0f)))};
}
inline Vec square_root(Vec a) {
  return {_mm512_sqrt_ps(a.v)};
}

// 2^x. Splitting at floor(x) lets scalef take x itself: no integer arithmetic, and -inf gives 0 unasked. The
// polynomial is the minimax of degree 6 on [0, 1) with 2^0 = 1: within 8e-8 relative, rounding included.
[[gnu::always_inline]] inline Vec exp2(Vec x) {
  const __m512 r = _mm512_reduce_ps(x.v, 0x09);  // r <- x - floor(x)
  __m512 p = _mm512_set1_ps(0.000216129192f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.00124678458f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.00967545155f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.0554852821f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.240229309f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.693147063f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return {_mm512_scalef_ps(p, x.v)};
}

}  // namespace headroom::cpu::avx512
