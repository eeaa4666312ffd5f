// The loss kernels for any vector type.
#pragma once

#include "cpu/micro-inl.h"
#include "loss/cpu/kernels.h"

namespace headroom::cpu {

inline constexpr float kLog2E = 1.44269504f;

template <class Vec>
void cap_logits(float* logits, std::int64_t rows, std::int64_t stride, float softcap) {
  const Vec slope = Vec::all(1 / softcap);
  for (std::int64_t i = 0; i < rows * stride; i += Vec::kLanes) {
    (tanh(Vec::load(logits + i) * slope) * Vec::all(softcap)).store(logits + i);
  }
}

template <class Vec>
void logit_statistics(float* logits, std::int64_t rows, std::int64_t stride, float softcap,
                      const LogitStatistics& result) {
  if (softcap != 0) cap_logits<Vec>(logits, rows, stride, softcap);
  for (std::int64_t t = 0; t < stride; t += Vec::kLanes) {
    Vec::all(-__builtin_inff()).store(result.max + t);
    Vec::zero().store(result.sum + t);
    Vec::zero().store(result.logit_sum + t);
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t t = 0; t < stride; t += Vec::kLanes) {
      larger(Vec::load(result.max + t), Vec::load(logits + row * stride + t)).store(result.max + t);
    }
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t t = 0; t < stride; t += Vec::kLanes) {
      const Vec z = Vec::load(logits + row * stride + t);
      const Vec e = exp2((z - Vec::load(result.max + t)) * Vec::all(kLog2E));
      (Vec::load(result.sum + t) + e).store(result.sum + t);
      (Vec::load(result.logit_sum + t) + z).store(result.logit_sum + t);
    }
  }
}

template <class Vec>
void logit_gradient(float* logits, std::int64_t rows, std::int64_t stride, float softcap,
                    const LogitGradient& rule) {
  const Vec inverse_cap = Vec::all(softcap == 0 ? 0 : 1 / softcap);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t t = 0; t < stride; t += Vec::kLanes) {
      float* place = logits + row * stride + t;
      const Vec z = Vec::load(place);
      const Vec e = exp2((z - Vec::load(rule.max + t)) * Vec::all(kLog2E));
      Vec g = e * Vec::load(rule.factor + t) - Vec::load(rule.smoothing + t);
      if (softcap != 0) {
        // d tanh = 1 - tanh^2, and tanh is z / softcap
        const Vec capped = z * inverse_cap;
        g = g * (Vec::all(1) - capped * capped);
      }
      g.store(place);
    }
  }
}

template <class Vec>
constexpr LossKernels make_loss_kernels() {
  return {.statistics = logit_statistics<Vec>, .cap = cap_logits<Vec>, .gradient = logit_gradient<Vec>};
}

}  // namespace headroom::cpu
