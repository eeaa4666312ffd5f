// RMS normalisation, rows at a time. Every row is read twice: it is in L1 or L2 the second time.
#pragma once

#include "ops/cpu/walk-inl.h"

namespace headroom::cpu {

template <class Vec>
void rms_norm_forward(const RmsNormForwardRows& rows, std::int64_t begin, std::int64_t end) {
  with_dtype<Vec>(rows.x.dtype, [&]<DType kType>() {
    with_dtype<Vec>(rows.weight_dtype, [&]<DType kWeight>() {
      const auto* weight = static_cast<const Stored<kWeight>*>(rows.weight);
      for (std::int64_t row = begin; row < end; ++row) {
        const auto* x = static_cast<const Stored<kType>*>(rows.x.data) + rows.x.offset(row);
        auto* y = static_cast<Stored<kType>*>(rows.y.data) + rows.y.offset(row);
        const float squares = sum_vectors<Vec>(rows.dim, [&](Vec sum, std::int64_t i, int valid) {
          const Vec value = load_elements<Vec, kType>(x + i, valid);
          return fma(value, value, sum);
        });
        // rstd <- 1 / sqrt(mean(x^2) + epsilon)
        const float mean = squares / static_cast<float>(rows.dim);
        const float rstd = 1.0f / __builtin_sqrtf(mean + rows.epsilon);
        rows.rstd[row] = rstd;
        // y <- x * rstd * weight
        for_vectors<Vec>(rows.dim, [&](std::int64_t i, int valid) {
          const Vec normal = load_elements<Vec, kType>(x + i, valid) * Vec::all(rstd);
          store_elements<Vec, kType>(normal * load_elements<Vec, kWeight>(weight + i, valid), y + i, valid);
        });
      }
    });
  });
}

template <class Vec>
void rms_norm_backward(const RmsNormBackwardRows& rows, std::int64_t begin, std::int64_t end,
                       float* weight_gradient) {
  for_vectors<Vec>(rows.dim, [&](std::int64_t i, int valid) {
    store_elements<Vec, DType::f32>(Vec::zero(), weight_gradient + i, valid);
  });
  with_dtype<Vec>(rows.x.dtype, [&]<DType kType>() {
    with_dtype<Vec>(rows.weight_dtype, [&]<DType kWeight>() {
      const auto* weight = static_cast<const Stored<kWeight>*>(rows.weight);
      for (std::int64_t row = begin; row < end; ++row) {
        const auto* x = static_cast<const Stored<kType>*>(rows.x.data) + rows.x.offset(row);
        const auto* dy =
            static_cast<const Stored<kType>*>(rows.y_gradient.data) + rows.y_gradient.offset(row);
        auto* dx = static_cast<Stored<kType>*>(rows.x_gradient.data) + rows.x_gradient.offset(row);
        const Vec rstd = Vec::all(rows.rstd[row]);
        // mean <- mean(g * h) with g = dy * weight, h = x * rstd
        const float dot = sum_vectors<Vec>(rows.dim, [&](Vec sum, std::int64_t i, int valid) {
          const Vec g =
              load_elements<Vec, kType>(dy + i, valid) * load_elements<Vec, kWeight>(weight + i, valid);
          return fma(g, load_elements<Vec, kType>(x + i, valid) * rstd, sum);
        });
        const Vec minus_mean = Vec::all(-dot / static_cast<float>(rows.dim));
        // dx <- [dx +] rstd * (g - h * mean), dweight <- dweight + dy * h
        for_vectors<Vec>(rows.dim, [&](std::int64_t i, int valid) {
          const Vec h = load_elements<Vec, kType>(x + i, valid) * rstd;
          const Vec gradient = load_elements<Vec, kType>(dy + i, valid);
          const Vec sum = load_elements<Vec, DType::f32>(weight_gradient + i, valid);
          store_elements<Vec, DType::f32>(fma(gradient, h, sum), weight_gradient + i, valid);
          const Vec g = gradient * load_elements<Vec, kWeight>(weight + i, valid);
          const Vec result = fma(h, minus_mean, g);
          const Vec before = rows.add ? load_elements<Vec, kType>(dx + i, valid) : Vec::zero();
          store_elements<Vec, kType>(fma(result, rstd, before), dx + i, valid);
        });
      }
    });
  });
}

template <class Vec>
void add_parts(const float* parts, std::int64_t count, std::int64_t stride, std::int64_t columns,
               DType sums_dtype, void* sums) {
  with_dtype<Vec>(sums_dtype, [&]<DType kSums>() {
    auto* to = static_cast<Stored<kSums>*>(sums);
    for_vectors<Vec>(columns, [&](std::int64_t i, int valid) {
      Vec sum = Vec::zero();
      for (std::int64_t part = 0; part < count; ++part) {
        sum = sum + load_elements<Vec, DType::f32>(parts + part * stride + i, valid);
      }
      store_elements<Vec, kSums>(load_elements<Vec, kSums>(to + i, valid) + sum, to + i, valid);
    });
  });
}

}  // namespace headroom::cpu
