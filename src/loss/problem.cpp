#include <cmath>

#include "headroom/loss.h"

namespace headroom {

void validate(const LossProblem& problem) {
  check(problem.tokens >= 0, "tokens {} is negative", problem.tokens);
  check(problem.hidden > 0 && problem.vocab > 0, "hidden {} and vocab {} have to be above zero",
        problem.hidden, problem.vocab);
  check(problem.dtype == DType::f32 || problem.dtype == DType::bf16 || problem.dtype == DType::f16,
        "the loss takes f32, bf16 or f16, not {}", name(problem.dtype));
  check(problem.label_smoothing >= 0 && problem.label_smoothing < 1, "label smoothing {} is not in [0, 1)",
        problem.label_smoothing);
  check(problem.z_loss >= 0 && std::isfinite(problem.z_loss), "z-loss {} is not a number from 0 up",
        problem.z_loss);
  check(problem.softcap >= 0 && std::isfinite(problem.softcap), "softcap {} is not a number from 0 up",
        problem.softcap);
  check(problem.chunk_tokens >= 0 && problem.chunk_vocab >= 0, "chunks of {} tokens x {} words are negative",
        problem.chunk_tokens, problem.chunk_vocab);
  check(problem.sequence_tokens >= 0 &&
            (problem.sequence_tokens == 0 || problem.tokens % problem.sequence_tokens == 0),
        "{} tokens are not whole sequences of {}", problem.tokens, problem.sequence_tokens);
}

double flops(const LossProblem& problem, Pass pass) {
  const double product = 2.0 * static_cast<double>(problem.tokens) * static_cast<double>(problem.hidden) *
                         static_cast<double>(problem.vocab);
  return pass == Pass::forward ? product : 2.0 * product;
}

std::int64_t logits_bytes(const LossProblem& problem) {
  return dense_bytes(problem.dtype, {problem.tokens, problem.vocab});
}

LossMethod loss_method_by_size(const LossProblem& problem, std::int64_t whole_bytes,
                               std::int64_t chunk_tokens) {
  if (logits_bytes(problem) <= whole_bytes) return {.implementation = "standard", .chunk_tokens = 0};
  return {.implementation = "chunked", .chunk_tokens = chunk_tokens};
}

}  // namespace headroom
