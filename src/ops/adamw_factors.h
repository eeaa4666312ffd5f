#pragma once

namespace headroom {

// What AdamW multiplies with, made in double on the host.
struct AdamWFactors {
  float decay;  // 1 - learning_rate * weight_decay
  float beta1;  // and 1 - beta1
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float step_size;          // learning_rate / (1 - beta1^step)
  float inverse_root_bias;  // 1 / sqrt(1 - beta2^step)
  float epsilon;
};

}  // namespace headroom
