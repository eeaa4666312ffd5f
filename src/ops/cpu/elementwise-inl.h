// Spans of elements: SwiGLU, sums, constants, conversions, AdamW, squares; and the rows of an embedding.
#pragma once

#include "ops/cpu/walk-inl.h"

namespace headroom::cpu {

// 1 / (1 + e^-x). Below -88 it is 0: there e^-x passes f32, and x * 0 is right to 1e-36. NaN is the caller's:
// whatever is multiplied with x is NaN again.
template <class Vec>
[[gnu::always_inline]] inline Vec sigmoid(Vec x) {
  const Vec limit = Vec::all(127.0f);
  const Vec exponent = x * Vec::all(-1.44269504f);
  const Vec bounded = where_below(exponent, limit, exponent, limit);
  const Vec result = Vec::all(1.0f) / (Vec::all(1.0f) + exp2(bounded));
  return where_below(limit, exponent, Vec::zero(), result);
}

template <class Vec>
void swiglu_forward(DType dtype, const void* gate, const void* up, void* act, std::int64_t count) {
  with_dtype<Vec>(dtype, [&]<DType kType>() {
    const auto* g = static_cast<const Stored<kType>*>(gate);
    const auto* u = static_cast<const Stored<kType>*>(up);
    auto* a = static_cast<Stored<kType>*>(act);
    // act <- gate * sigmoid(gate) * up
    for_vectors<Vec>(count, [&](std::int64_t i, int valid) {
      const Vec x = load_elements<Vec, kType>(g + i, valid);
      store_elements<Vec, kType>(x * sigmoid(x) * load_elements<Vec, kType>(u + i, valid), a + i, valid);
    });
  });
}

template <class Vec>
void swiglu_backward(const SwigluSpan& span, std::int64_t count) {
  with_dtype<Vec>(span.dtype, [&]<DType kType>() {
    const auto* g = static_cast<const Stored<kType>*>(span.gate);
    const auto* u = static_cast<const Stored<kType>*>(span.up);
    const auto* da = static_cast<const Stored<kType>*>(span.act_gradient);
    auto* dg = static_cast<Stored<kType>*>(span.gate_gradient);
    auto* du = static_cast<Stored<kType>*>(span.up_gradient);
    auto* a = static_cast<Stored<kType>*>(span.act);
    const Vec one = Vec::all(1.0f);
    for_vectors<Vec>(count, [&](std::int64_t i, int valid) {
      const Vec x = load_elements<Vec, kType>(g + i, valid);
      const Vec y = load_elements<Vec, kType>(u + i, valid);
      const Vec gradient = load_elements<Vec, kType>(da + i, valid);
      const Vec s = sigmoid(x);
      // dgate <- dact * up * s * (1 + gate * (1 - s)), dup <- dact * gate * s
      store_elements<Vec, kType>(gradient * y * (s * fma(x, one - s, one)), dg + i, valid);
      store_elements<Vec, kType>(gradient * (x * s), du + i, valid);
      if (a != nullptr) store_elements<Vec, kType>(x * s * y, a + i, valid);
    });
  });
}

template <class Vec>
void scatter_add(const ScatterAdd& scatter) {
  with_dtype<Vec>(scatter.x.dtype, [&]<DType kType>() {
    const auto* x = static_cast<const Stored<kType>*>(scatter.x.data) + scatter.column;
    for (std::int64_t token = 0; token < scatter.tokens; ++token) {
      const std::int32_t id = scatter.ids[token];
      if (id % scatter.groups != scatter.group || id == scatter.pad_token) continue;
      const auto* from = x + scatter.x.offset(token);
      float* to = scatter.table + id * scatter.table_stride + scatter.column;
      for_vectors<Vec>(scatter.columns, [&](std::int64_t i, int valid) {
        const Vec sum =
            load_elements<Vec, DType::f32>(to + i, valid) + load_elements<Vec, kType>(from + i, valid);
        store_elements<Vec, DType::f32>(sum, to + i, valid);
      });
    }
  });
}

template <class Vec>
void add(DType dtype, const void* a, const void* b, void* y, std::int64_t count) {
  with_dtype<Vec>(dtype, [&]<DType kType>() {
    const auto* left = static_cast<const Stored<kType>*>(a);
    const auto* right = static_cast<const Stored<kType>*>(b);
    auto* sum = static_cast<Stored<kType>*>(y);
    for_vectors<Vec>(count, [&](std::int64_t i, int valid) {
      store_elements<Vec, kType>(
          load_elements<Vec, kType>(left + i, valid) + load_elements<Vec, kType>(right + i, valid), sum + i,
          valid);
    });
  });
}

template <class Vec>
void fill(DType dtype, void* data, float value, std::int64_t count) {
  with_dtype<Vec>(dtype, [&]<DType kType>() {
    auto* to = static_cast<Stored<kType>*>(data);
    for_vectors<Vec>(count, [&](std::int64_t i, int valid) {
      store_elements<Vec, kType>(Vec::all(value), to + i, valid);
    });
  });
}

template <class Vec>
void convert(DType from_dtype, const void* from, DType to_dtype, void* to, std::int64_t count) {
  with_dtype<Vec>(from_dtype, [&]<DType kFrom>() {
    with_dtype<Vec>(to_dtype, [&]<DType kTo>() {
      const auto* source = static_cast<const Stored<kFrom>*>(from);
      auto* target = static_cast<Stored<kTo>*>(to);
      for_vectors<Vec>(count, [&](std::int64_t i, int valid) {
        store_elements<Vec, kTo>(load_elements<Vec, kFrom>(source + i, valid), target + i, valid);
      });
    });
  });
}

template <class Vec>
void adamw(const AdamWFactors& factors, const AdamWSpan& span, std::int64_t count) {
  const float scale = *span.factor;
  if (!(scale > 0.0f)) return;
  const auto vector = [](const float* p, int valid) { return load_elements<Vec, DType::f32>(p, valid); };
  with_dtype<Vec>(span.weight_dtype, [&]<DType kWeight>() {
    auto* weight = static_cast<Stored<kWeight>*>(span.weight);
    for_vectors<Vec>(count, [&](std::int64_t i, int valid) {
      const Vec g = vector(span.gradient + i, valid) * Vec::all(scale);
      const Vec first =
          fma(vector(span.first + i, valid), Vec::all(factors.beta1), g * Vec::all(factors.one_minus_beta1));
      const Vec second = fma(vector(span.second + i, valid), Vec::all(factors.beta2),
                             g * g * Vec::all(factors.one_minus_beta2));
      // master <- decay * master - step_size * first / (sqrt(second) / sqrt(bias) + epsilon)
      const Vec divisor =
          fma(square_root(second), Vec::all(factors.inverse_root_bias), Vec::all(factors.epsilon));
      const Vec master = fma(first / divisor, Vec::all(-factors.step_size),
                             vector(span.master + i, valid) * Vec::all(factors.decay));
      store_elements<Vec, DType::f32>(first, span.first + i, valid);
      store_elements<Vec, DType::f32>(second, span.second + i, valid);
      store_elements<Vec, DType::f32>(master, span.master + i, valid);
      if (weight != nullptr) store_elements<Vec, kWeight>(master, weight + i, valid);
    });
  });
}

// In double: a square of f32 neither overflows nor loses a bit.
template <class Vec>
double sum_of_squares(const float* data, std::int64_t count) {
  using W = Wide<Vec>;
  typename W::Doubles sums[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * W::kLanes <= count; i += 4 * W::kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const auto x = W::load(data + i + j * W::kLanes);
      sums[j] += x * x;
    }
  }
  const auto lanes = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double total = 0;
  for (int lane = 0; lane < W::kLanes; ++lane) total += lanes[lane];
  for (; i < count; ++i) total += static_cast<double>(data[i]) * static_cast<double>(data[i]);
  return total;
}

}  // namespace headroom::cpu
