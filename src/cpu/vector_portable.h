// Vectors of four floats for any machine: GCC's and Clang's generic vectors, SSE2 on x86.
#pragma once

#include <cstdint>

#include "cpu/levels.h"
#include "headroom/core/dtype.h"

namespace headroom::cpu::portable {

struct Vec {
  static constexpr int kLanes = vector_shape(SimdLevel::portable).lanes;
  static constexpr int kColumns = vector_shape(SimdLevel::portable).columns;
  using Floats = float __attribute__((vector_size(16)));
  using Words = std::int32_t __attribute__((vector_size(16)));
  Floats v;

  static Vec zero() { return {Floats{}}; }
  static Vec all(float x) { return {Floats{x, x, x, x}}; }
  static Vec load(const float* p) {
    Vec x;
    __builtin_memcpy(&x.v, p, sizeof x.v);
    return x;
  }
  void store(float* p) const { __builtin_memcpy(p, &v, sizeof v); }

  template <class Half>
  static Vec widen(const std::uint16_t* p) {
    Vec x;
    for (int i = 0; i < kLanes; ++i) {
      Half half;
      half.bits = p[i];
      x.v[i] = static_cast<float>(half);
    }
    return x;
  }
  template <class Half>
  void narrow(std::uint16_t* p) const {
    for (int i = 0; i < kLanes; ++i) p[i] = Half(v[i]).bits;
  }
  static Vec load_bf16(const std::uint16_t* p) { return widen<BFloat16>(p); }
  static Vec load_f16(const std::uint16_t* p) { return widen<Float16>(p); }
  void store_bf16(std::uint16_t* p) const { narrow<BFloat16>(p); }
  void store_f16(std::uint16_t* p) const { narrow<Float16>(p); }

  static Vec choose(Words mask, Vec yes, Vec no) {
    const Words bits = (mask & reinterpret_cast<Words>(yes.v)) | (~mask & reinterpret_cast<Words>(no.v));
    return {reinterpret_cast<Floats>(bits)};
  }
  // Lanes [begin, end) of x and `other` elsewhere; 0 <= begin, end <= kLanes.
  static Vec inside(Vec x, int begin, int end, Vec other) {
    const Words lane = {0, 1, 2, 3};
    return choose((lane >= begin) & (lane < end), x, other);
  }
  static void transpose(Vec* r) {
    for (int i = 0; i < kLanes; ++i) {
      for (int j = 0; j < i; ++j) {
        const float x = r[i].v[j];
        r[i].v[j] = r[j].v[i];
        r[j].v[i] = x;
      }
    }
  }
};

inline Vec operator+(Vec a, Vec b) {
  return {a.v + b.v};
}
inline Vec operator-(Vec a, Vec b) {
  return {a.v - b.v};
}
inline Vec operator*(Vec a, Vec b) {
  return {a.v * b.v};
}
inline Vec operator/(Vec a, Vec b) {
  return {a.v / b.v};
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return {a.v * b.v + c.v};
}
inline Vec larger(Vec a, Vec b) {
  return Vec::choose(a.v > b.v, a, b);
}
inline bool any_above(Vec a, Vec b) {
  const Vec::Words above = a.v > b.v;
  return (above[0] | above[1] | above[2] | above[3]) != 0;
}
inline float sum(Vec a) {
  return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
}
inline float maximum(Vec a) {
  float most = a.v[0];
  for (int i = 1; i < Vec::kLanes; ++i) most = a.v[i] > most ? a.v[i] : most;
  return most;
}
inline Vec where_below(Vec a, Vec limit, Vec yes, Vec no) {
  return Vec::choose(a.v < limit.v, yes, no);
}
inline Vec magnitude(Vec a) {
  return Vec::choose(a.v < 0.0f, {-a.v}, a);
}
inline Vec with_sign(Vec a, Vec sign) {
  return Vec::choose(sign.v < 0.0f, {-a.v}, a);
}
inline Vec square_root(Vec a) {
  for (int i = 0; i < Vec::kLanes; ++i) a.v[i] = __builtin_sqrtf(a.v[i]);
  return a;
}

// 2^x for x below 128; below -126.5 exactly 0. Adding 1.5 * 2^23 rounds to a whole number that then stands in
// the low bits. Minimax of degree 6 on [-1/2, 1/2] with 2^0 = 1: within 8e-8 relative, rounding included.
inline Vec exp2(Vec x) {
  const Vec bounded = Vec::choose(x.v < -127.0f, Vec::all(-127.0f), x);
  const Vec shifted = {bounded.v + 12582912.0f};
  const Vec r = {bounded.v - (shifted.v - 12582912.0f)};
  Vec p = Vec::all(0.00015353362f);
  p = fma(p, r, Vec::all(0.0013398875f));
  p = fma(p, r, Vec::all(0.00961843692f));
  p = fma(p, r, Vec::all(0.0555033237f));
  p = fma(p, r, Vec::all(0.240226477f));
  p = fma(p, r, Vec::all(0.693147182f));
  p = fma(p, r, Vec::all(1.0f));
  const Vec::Words exponent = (reinterpret_cast<Vec::Words>(shifted.v) + 127) << 23;
  return {p.v * reinterpret_cast<Vec::Floats>(exponent)};
}

}  // namespace headroom::cpu::portable
