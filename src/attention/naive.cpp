// Attention as it is written first: scores and probabilities materialised as [batch, heads_q, seq_q, seq_k]
// in the problem's dtype. It is the baseline that shows what that costs. The keeping form holds both matrices
// for backward, as eager autograd does; the recomputing form makes them again there: fewer bytes saved, the
// same peak in backward.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/elements.h"
#include "attention/implementations.h"
#include "headroom/core/checked.h"
#include "headroom/cpu/thread_pool.h"

namespace headroom {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::int64_t matrix_bytes(const AttentionProblem& problem) {
  return dense_bytes(problem.dtype, {problem.batch, problem.heads_q, problem.seq_q, problem.seq_k});
}

// The n-th matrix of a piece of memory.
TensorView matrix(const AttentionProblem& problem, const TensorView& memory, std::int64_t n) {
  return {memory.data<std::uint8_t>() + n * matrix_bytes(problem), problem.dtype,
          Shape{problem.batch, problem.heads_q, problem.seq_q, problem.seq_k}};
}

float at(const TensorView& view, std::int64_t offset) {
  return static_cast<float>(read_element(view, offset));
}

float dot(const TensorView& a, std::int64_t a_offset, std::int64_t a_stride, const TensorView& b,
          std::int64_t b_offset, std::int64_t b_stride, std::int64_t count) {
  float sum = 0;
  for (std::int64_t i = 0; i < count; ++i)
    sum += at(a, a_offset + i * a_stride) * at(b, b_offset + i * b_stride);
  return sum;
}

// Items (batch, query head, query row).
template <class Body>
void for_each_query(const AttentionProblem& problem, const Stream& stream, const Body& body) {
  parallel_for(stream, problem.batch * problem.heads_q * problem.seq_q, [&](std::int64_t item) {
    body(item / (problem.heads_q * problem.seq_q), item / problem.seq_q % problem.heads_q,
         item % problem.seq_q);
  });
}

std::int64_t kv_head(const AttentionProblem& problem, std::int64_t head) {
  return head / (problem.heads_q / problem.heads_kv);
}

// How many of the head's patterns join the pair: mixing patterns by their log-sum-exp is a softmax over all
// of them.
float multiplicity(const std::array<MaskView, Mask::kMaxDilations>& masks, int patterns, std::int64_t q,
                   std::int64_t k) {
  int count = 0;
  for (int p = 0; p < patterns; ++p) count += masks[static_cast<std::size_t>(p)].attends(q, k);
  return static_cast<float>(count);
}

// S <- cap(scale * Q K^T) + ln(multiplicity); P <- softmax(S)
void scores_and_probabilities(const AttentionProblem& problem, const AttentionForward& views,
                              const TensorView& scores, const TensorView& probabilities,
                              const Stream& stream) {
  const float scale = score_scale(problem);
  const int patterns = problem.mask.patterns_per_head();
  for_each_query(problem, stream, [&](std::int64_t b, std::int64_t h, std::int64_t q) {
    std::array<MaskView, Mask::kMaxDilations> masks;
    for (int p = 0; p < patterns; ++p)
      masks[static_cast<std::size_t>(p)] = mask_view(problem, views, b, h, p);
    const std::int64_t row = scores.offset(b, h, q);
    const float sink = problem.sinks ? views.sinks.data<float>()[h] : -kInfinity;
    float row_max = sink;
    for (std::int64_t k = 0; k < problem.seq_k; ++k) {
      float s = scale * dot(views.query, views.query.offset(b, q, h), 1, views.key,
                            views.key.offset(b, k, kv_head(problem, h)), 1, problem.head_dim);
      if (problem.softcap != 0) s = problem.softcap * std::tanh(s / problem.softcap);
      write_element(scores, row + k, s + std::log(multiplicity(masks, patterns, q, k)));
      row_max = std::max(row_max, at(scores, row + k));
    }
    const float shift = row_max == -kInfinity ? 0 : row_max;  // a row that sees nothing
    float row_sum = std::exp(sink - shift);
    for (std::int64_t k = 0; k < problem.seq_k; ++k) row_sum += std::exp(at(scores, row + k) - shift);
    for (std::int64_t k = 0; k < problem.seq_k; ++k) {
      write_element(probabilities, row + k,
                    row_sum == 0 ? 0 : std::exp(at(scores, row + k) - shift) / row_sum);
    }
    write_element(views.lse, views.lse.offset(b, h, q),
                  row_sum == 0 ? -kInfinity : shift + std::log(row_sum));
  });
}

void forward_into(const AttentionProblem& problem, const AttentionForward& views, TensorView memory,
                  const Stream& stream) {
  const TensorView probabilities = matrix(problem, memory, 1);
  scores_and_probabilities(problem, views, matrix(problem, memory, 0), probabilities, stream);
  // O <- P V
  for_each_query(problem, stream, [&](std::int64_t b, std::int64_t h, std::int64_t q) {
    for (std::int64_t c = 0; c < problem.head_dim; ++c) {
      write_element(
          views.output, views.output.offset(b, q, h, c),
          dot(probabilities, probabilities.offset(b, h, q), 1, views.value,
              views.value.offset(b, 0, kv_head(problem, h), c), views.value.stride(1), problem.seq_k));
    }
  });
}

// `kept` holds S and P, `memory` takes dP and dS.
void backward_from(const AttentionProblem& problem, const AttentionBackward& views, const TensorView& kept,
                   const TensorView& memory, const Stream& stream) {
  const AttentionForward& inputs = views.forward;
  const TensorView scores = matrix(problem, kept, 0);
  const TensorView p = matrix(problem, kept, 1);
  const TensorView dp = matrix(problem, memory, 0);
  const TensorView ds = matrix(problem, memory, 1);
  const float scale = score_scale(problem);
  const auto through_lse = [&](std::int64_t b, std::int64_t h, std::int64_t q) {
    return views.lse_gradient.elements() == 0 ? 0.0F
                                              : at(views.lse_gradient, views.lse_gradient.offset(b, h, q));
  };
  for_each_query(problem, stream, [&](std::int64_t b, std::int64_t h, std::int64_t q) {
    // dP <- dO V^T; dS <- P (dP - sum(P dP) + dLSE), times the slope of the cap
    const std::int64_t row = dp.offset(b, h, q);
    float row_dot = -through_lse(b, h, q);
    for (std::int64_t k = 0; k < problem.seq_k; ++k) {
      write_element(dp, row + k,
                    dot(views.output_gradient, views.output_gradient.offset(b, q, h), 1, inputs.value,
                        inputs.value.offset(b, k, kv_head(problem, h)), 1, problem.head_dim));
      row_dot += at(p, row + k) * at(dp, row + k);
    }
    for (std::int64_t k = 0; k < problem.seq_k; ++k) {
      float slope = 1;
      if (problem.softcap != 0 && at(p, row + k) != 0) {
        const float t = at(scores, row + k) / problem.softcap;
        slope = 1 - t * t;
      }
      write_element(ds, row + k, at(p, row + k) * (at(dp, row + k) - row_dot) * slope);
    }
    // dQ <- scale * dS K
    for (std::int64_t c = 0; c < problem.head_dim; ++c) {
      write_element(views.query_gradient, views.query_gradient.offset(b, q, h, c),
                    scale * dot(ds, row, 1, inputs.key, inputs.key.offset(b, 0, kv_head(problem, h), c),
                                inputs.key.stride(1), problem.seq_k));
    }
  });
  // dK <- scale * dS^T Q; dV <- P^T dO
  const std::int64_t group = problem.heads_q / problem.heads_kv;
  parallel_for(stream, problem.batch * problem.heads_kv * problem.seq_k, [&](std::int64_t item) {
    const std::int64_t b = item / (problem.heads_kv * problem.seq_k);
    const std::int64_t kv = item / problem.seq_k % problem.heads_kv;
    const std::int64_t k = item % problem.seq_k;
    for (std::int64_t c = 0; c < problem.head_dim; ++c) {
      float key_sum = 0;
      float value_sum = 0;
      for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        key_sum += scale * dot(ds, ds.offset(b, h, 0, k), ds.stride(2), inputs.query,
                               inputs.query.offset(b, 0, h, c), inputs.query.stride(1), problem.seq_q);
        value_sum +=
            dot(p, p.offset(b, h, 0, k), p.stride(2), views.output_gradient,
                views.output_gradient.offset(b, 0, h, c), views.output_gradient.stride(1), problem.seq_q);
      }
      write_element(views.key_gradient, views.key_gradient.offset(b, k, kv, c), key_sum);
      write_element(views.value_gradient, views.value_gradient.offset(b, k, kv, c), value_sum);
    }
  });
  // dSink <- -sum over rows of exp(sink - lse) * row_dot
  if (!problem.sinks) return;
  for (std::int64_t h = 0; h < problem.heads_q; ++h) {
    float sum = 0;
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      for (std::int64_t q = 0; q < problem.seq_q; ++q) {
        const std::int64_t row = p.offset(b, h, q);
        const float row_dot = dot(p, row, 1, dp, row, 1, problem.seq_k) - through_lse(b, h, q);
        sum -= std::exp(inputs.sinks.data<float>()[h] - at(inputs.lse, inputs.lse.offset(b, h, q))) * row_dot;
      }
    }
    write_element(views.sinks_gradient, h, sum);
  }
}

void forward_keeping(const AttentionProblem& problem, const AttentionForward& views, TensorView,
                     const Stream& stream) {
  forward_into(problem, views, views.saved, stream);
}

void backward_keeping(const AttentionProblem& problem, const AttentionBackward& views, TensorView workspace,
                      const Stream& stream) {
  backward_from(problem, views, views.forward.saved, workspace, stream);
}

void backward_recomputing(const AttentionProblem& problem, const AttentionBackward& views,
                          TensorView workspace, const Stream& stream) {
  const TensorView kept = workspace.slice(0, 0, 2 * matrix_bytes(problem));
  scores_and_probabilities(problem, views.forward, matrix(problem, kept, 0), matrix(problem, kept, 1),
                           stream);
  backward_from(problem, views, kept,
                workspace.slice(0, 2 * matrix_bytes(problem), 2 * matrix_bytes(problem)), stream);
}

Support supports(const AttentionProblem& problem, const DeviceDescription& device) {
  if (device.kind != DeviceKind::cpu) return Support::no("runs on the CPU only");
  if (problem.mask.detach_mixing) return Support::no("does not detach the weights of mixed patterns");
  if (problem.softcap != 0 && problem.mask.patterns_per_head() > 1)
    return Support::no("does not cap mixed patterns");
  return Support::yes();
}

}  // namespace

const AttentionImplementation& naive_attention() {
  static constexpr AttentionImplementation kKeeping{
      "naive",
      supports,
      [](const AttentionProblem& problem, const DeviceDescription&, Pass pass) {
        return pass == Pass::forward ? 0 : checked_multiply(2, matrix_bytes(problem));
      },
      [](const AttentionProblem& problem) { return checked_multiply(2, matrix_bytes(problem)); },
      forward_keeping,
      backward_keeping};
  return kKeeping;
}

const AttentionImplementation& naive_recomputing_attention() {
  static constexpr AttentionImplementation kRecomputing{
      "naive-recompute",
      supports,
      [](const AttentionProblem& problem, const DeviceDescription&, Pass pass) {
        return checked_multiply(pass == Pass::forward ? 2 : 4, matrix_bytes(problem));
      },
      [](const AttentionProblem&) -> std::int64_t { return 0; },
      forward_into,
      backward_recomputing};
  return kRecomputing;
}

}  // namespace headroom
