// Attention as it is written first: scores and probabilities materialised as [batch, heads_q, seq_q, seq_k]
// in the problem's dtype. It is the baseline that shows what that costs. The keeping form holds both matrices
// for backward, as eager autograd does; the recomputing form makes them again there: fewer bytes saved, the
// same peak in backward. A chunk's probabilities are made again from its scores and the lse of the whole.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "attention/implementations.h"
#include "headroom/core/checked.h"
#include "headroom/cpu/thread_pool.h"

namespace headroom {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::size_t kMaxHeadDim = 256;
using Row = std::array<float, kMaxHeadDim>;

std::int64_t matrix_bytes(const AttentionProblem& problem) {
  return dense_bytes(problem.dtype, {problem.batch, problem.heads_q, problem.seq_q, problem.seq_k});
}

// The n-th matrix of a piece of memory.
TensorView matrix(const AttentionProblem& problem, const TensorView& memory, std::int64_t n) {
  return {memory.data<std::uint8_t>() + n * matrix_bytes(problem), problem.dtype,
          Shape{problem.batch, problem.heads_q, problem.seq_q, problem.seq_k}};
}

std::int64_t kv_head(const AttentionProblem& problem, std::int64_t head) {
  return head / (problem.heads_q / problem.heads_kv);
}

// sum of a . b, one product after the other: the plain computation that others are judged by.
template <class T>
float dot(const Row& a, const T* b, std::int64_t count) {
  float sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += a[static_cast<std::size_t>(i)] * static_cast<float>(b[i]);
  return sum;
}

// sum <- sum + factor * row
template <class T>
void add_scaled(Row& sum, float factor, const T* row, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    sum[static_cast<std::size_t>(i)] += factor * static_cast<float>(row[i]);
}

template <class T>
Row load(const T* row, std::int64_t count) {
  Row result{};
  for (std::int64_t i = 0; i < count; ++i) result[static_cast<std::size_t>(i)] = static_cast<float>(row[i]);
  return result;
}

template <class T>
void store(const Row& row, float factor, T* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(factor * row[static_cast<std::size_t>(i)]);
}

// How many of a head's patterns join a pair: mixing patterns by their log-sum-exp is a softmax over all of
// them.
class RowMask {
 public:
  RowMask(const AttentionProblem& problem, const AttentionForward& views, std::int64_t b, std::int64_t h,
          std::int64_t q)
      : patterns_(static_cast<std::size_t>(problem.mask.patterns_per_head())), q_(q) {
    for (std::size_t p = 0; p < patterns_; ++p) {
      masks_[p] = mask_view(problem, views, b, h, static_cast<int>(p));
      intervals_[p] = masks_[p].interval(q);
      only_interval_ &= masks_[p].dilation.segment == 0 && masks_[p].blocks == nullptr;
    }
  }
  [[nodiscard]] int multiplicity(std::int64_t k) const {
    int count = 0;
    for (std::size_t p = 0; p < patterns_; ++p) {
      if (k < intervals_[p].begin || k >= intervals_[p].end) continue;
      count += only_interval_ || masks_[p].attends(q_, k);
    }
    return count;
  }

 private:
  std::size_t patterns_;
  std::int64_t q_;
  bool only_interval_ = true;
  std::array<MaskView, Mask::kMaxDilations> masks_;
  std::array<KeyRange, Mask::kMaxDilations> intervals_;
};

// The whole computation: matrices, Q, K, V and their gradients in T, O and dO in Output.
template <class T, class Output>
class Naive {
 public:
  Naive(const AttentionProblem& problem, const AttentionForward& views, const Stream& stream)
      : problem_(problem),
        views_(views),
        stream_(stream),
        scale_(score_scale(problem)),
        d_(problem.head_dim) {}

  // S <- cap(scale * Q K^T) + ln(multiplicity); P <- softmax(S); lse, unless it is null
  void scores_and_probabilities(T* scores, T* probabilities, float* lse) const {
    for_each_query([&](std::int64_t b, std::int64_t h, std::int64_t q) {
      const RowMask mask(problem_, views_, b, h, q);
      const Row query = load(row(views_.query, b, q, h), d_);
      T* s = scores + matrix_row(b, h, q);
      T* p = probabilities + matrix_row(b, h, q);
      const float sink = problem_.sinks ? views_.sinks.template data<float>()[h] : -kInfinity;
      float row_max = sink;
      for (std::int64_t k = 0; k < problem_.seq_k; ++k) {
        const int multiplicity = mask.multiplicity(k);
        float score = -kInfinity;
        if (multiplicity > 0) {
          score = scale_ * dot(query, row(views_.key, b, k, kv_head(problem_, h)), d_);
          if (problem_.softcap != 0) score = problem_.softcap * std::tanh(score / problem_.softcap);
          if (multiplicity > 1) score += std::log(static_cast<float>(multiplicity));
        }
        s[k] = static_cast<T>(score);
        row_max = std::max(row_max, static_cast<float>(s[k]));
      }
      const float shift = row_max == -kInfinity ? 0 : row_max;  // a row that sees nothing
      float row_sum = std::exp(sink - shift);
      for (std::int64_t k = 0; k < problem_.seq_k; ++k) row_sum += std::exp(static_cast<float>(s[k]) - shift);
      for (std::int64_t k = 0; k < problem_.seq_k; ++k) {
        p[k] = static_cast<T>(row_sum == 0 ? 0.0F : std::exp(static_cast<float>(s[k]) - shift) / row_sum);
      }
      if (lse == nullptr) return;
      lse[statistics_row(problem_, b, h, q)] = row_sum == 0 ? -kInfinity : shift + std::log(row_sum);
    });
  }

  // P <- exp(S - lse), with the lse of the whole that a chunk is a part of
  void probabilities_of_chunk(const T* scores, T* probabilities) const {
    for_each_query([&](std::int64_t b, std::int64_t h, std::int64_t q) {
      const std::int64_t at = matrix_row(b, h, q);
      const float lse = views_.lse.template data<float>()[statistics_row(problem_, b, h, q)];
      for (std::int64_t k = at; k < at + problem_.seq_k; ++k) {
        probabilities[k] =
            static_cast<T>(lse == -kInfinity ? 0.0F : std::exp(static_cast<float>(scores[k]) - lse));
      }
    });
  }

  // O <- P V
  void output(const T* probabilities) const {
    for_each_query([&](std::int64_t b, std::int64_t h, std::int64_t q) {
      const T* p = probabilities + matrix_row(b, h, q);
      Row sum{};
      for (std::int64_t k = 0; k < problem_.seq_k; ++k) {
        add_scaled(sum, static_cast<float>(p[k]), row(views_.value, b, k, kv_head(problem_, h)), d_);
      }
      store(sum, 1, output_row(views_.output, b, q, h), d_);
    });
  }

  void backward(const AttentionBackward& views, const T* scores, const T* probabilities, T* dp, T* ds) const {
    // dO . O - dLSE: over a whole sequence dO . O is the sum of P dP
    const auto row_dot_of = [&](std::int64_t b, std::int64_t h, std::int64_t q) {
      float sum = views.lse_gradient.elements() == 0
                      ? 0.0F
                      : -views.lse_gradient.template data<float>()[statistics_row(problem_, b, h, q)];
      if (problem_.chunk) {
        return sum + dot(load(output_row(views.output_gradient, b, q, h), d_),
                         output_row(views_.output, b, q, h), d_);
      }
      const std::int64_t at = matrix_row(b, h, q);
      for (std::int64_t k = at; k < at + problem_.seq_k; ++k) {
        sum += static_cast<float>(probabilities[k]) * static_cast<float>(dp[k]);
      }
      return sum;
    };
    for_each_query([&](std::int64_t b, std::int64_t h, std::int64_t q) {
      // dP <- dO V^T; dS <- P (dP - dO . O + dLSE), times the slope of the cap; dQ <- scale * dS K
      const std::int64_t at = matrix_row(b, h, q);
      const Row gradient = load(output_row(views.output_gradient, b, q, h), d_);
      for (std::int64_t k = 0; k < problem_.seq_k; ++k) {
        dp[at + k] = static_cast<T>(dot(gradient, row(views_.value, b, k, kv_head(problem_, h)), d_));
      }
      const float row_dot = row_dot_of(b, h, q);
      Row sum{};
      for (std::int64_t k = 0; k < problem_.seq_k; ++k) {
        const auto p = static_cast<float>(probabilities[at + k]);
        float slope = 1;
        if (problem_.softcap != 0 && p != 0) {
          const float t = static_cast<float>(scores[at + k]) / problem_.softcap;
          slope = 1 - t * t;
        }
        ds[at + k] = static_cast<T>(p * (static_cast<float>(dp[at + k]) - row_dot) * slope);
        add_scaled(sum, static_cast<float>(ds[at + k]), row(views_.key, b, k, kv_head(problem_, h)), d_);
      }
      store(sum, scale_, row(views.query_gradient, b, q, h), d_);
    });
    // dK <- scale * dS^T Q; dV <- P^T dO
    const std::int64_t group = problem_.heads_q / problem_.heads_kv;
    parallel_for(stream_, problem_.batch * problem_.heads_kv * problem_.seq_k, [&](std::int64_t item) {
      const std::int64_t b = item / (problem_.heads_kv * problem_.seq_k);
      const std::int64_t kv = item / problem_.seq_k % problem_.heads_kv;
      const std::int64_t k = item % problem_.seq_k;
      Row key_sum{};
      Row value_sum{};
      for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        for (std::int64_t q = 0; q < problem_.seq_q; ++q) {
          const std::int64_t at = matrix_row(b, h, q) + k;
          add_scaled(key_sum, static_cast<float>(ds[at]), row(views_.query, b, q, h), d_);
          add_scaled(value_sum, static_cast<float>(probabilities[at]),
                     output_row(views.output_gradient, b, q, h), d_);
        }
      }
      store(key_sum, scale_, row(views.key_gradient, b, k, kv), d_);
      store(value_sum, 1, row(views.value_gradient, b, k, kv), d_);
    });
    // dSink <- -sum over rows of exp(sink - lse) * row_dot
    if (!problem_.sinks) return;
    for (std::int64_t h = 0; h < problem_.heads_q; ++h) {
      const float sink = views_.sinks.template data<float>()[h];
      float sum = 0;
      for (std::int64_t b = 0; b < problem_.batch; ++b) {
        for (std::int64_t q = 0; q < problem_.seq_q; ++q) {
          const float lse = views_.lse.template data<float>()[statistics_row(problem_, b, h, q)];
          if (lse != -kInfinity) sum -= std::exp(sink - lse) * row_dot_of(b, h, q);
        }
      }
      views.sinks_gradient.template data<float>()[h] = sum;
    }
  }

 private:
  static T* row(const TensorView& view, std::int64_t b, std::int64_t r, std::int64_t h) {
    return view.data<T>() + view.offset(b, r, h);
  }
  static Output* output_row(const TensorView& view, std::int64_t b, std::int64_t r, std::int64_t h) {
    return view.data<Output>() + view.offset(b, r, h);
  }
  [[nodiscard]] std::int64_t matrix_row(std::int64_t b, std::int64_t h, std::int64_t q) const {
    return statistics_row(problem_, b, h, q) * problem_.seq_k;
  }
  template <class Body>
  void for_each_query(const Body& body) const {
    parallel_for(stream_, problem_.batch * problem_.heads_q * problem_.seq_q, [&](std::int64_t item) {
      body(item / (problem_.heads_q * problem_.seq_q), item / problem_.seq_q % problem_.heads_q,
           item % problem_.seq_q);
    });
  }

  const AttentionProblem& problem_;
  const AttentionForward& views_;
  const Stream& stream_;
  float scale_;
  std::int64_t d_;
};

// body.operator()<T, Output>() for the problem's element types.
template <class Body>
void with_types(const AttentionProblem& problem, const Body& body) {
  const auto with = [&]<class T>() {
    if (problem.dtype_of_output() == DType::f32) return body.template operator()<T, float>();
    body.template operator()<T, T>();
  };
  if (problem.dtype == DType::f32) return with.template operator()<float>();
  if (problem.dtype == DType::bf16) return with.template operator()<BFloat16>();
  with.template operator()<Float16>();
}

void forward_into(const AttentionProblem& problem, const AttentionForward& views, TensorView memory,
                  const Stream& stream) {
  with_types(problem, [&]<class T, class Output>() {
    const Naive<T, Output> naive(problem, views, stream);
    T* probabilities = matrix(problem, memory, 1).data<T>();
    naive.scores_and_probabilities(matrix(problem, memory, 0).data<T>(), probabilities,
                                   views.lse.data<float>());
    naive.output(probabilities);
  });
}

// `kept` holds S and P, `memory` takes dP and dS.
void backward_from(const AttentionProblem& problem, const AttentionBackward& views, const TensorView& kept,
                   const TensorView& memory, const Stream& stream) {
  with_types(problem, [&]<class T, class Output>() {
    const Naive<T, Output> naive(problem, views.forward, stream);
    const T* scores = matrix(problem, kept, 0).data<T>();
    T* probabilities = matrix(problem, kept, 1).data<T>();
    if (problem.chunk) naive.probabilities_of_chunk(scores, probabilities);
    naive.backward(views, scores, probabilities, matrix(problem, memory, 0).data<T>(),
                   matrix(problem, memory, 1).data<T>());
  });
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
  with_types(problem, [&]<class T, class Output>() {
    Naive<T, Output>(problem, views.forward, stream)
        .scores_and_probabilities(matrix(problem, kept, 0).data<T>(), matrix(problem, kept, 1).data<T>(),
                                  nullptr);
  });
  backward_from(problem, views, kept,
                workspace.slice(0, 2 * matrix_bytes(problem), 2 * matrix_bytes(problem)), stream);
}

Support supports(const AttentionProblem& problem, const DeviceDescription& device) {
  if (device.kind != DeviceKind::cpu) return Support::no("runs on the CPU only");
  std::int64_t bytes = 4 * size_bytes(problem.dtype);  // of four matrices, an element of each at a time
  for (const std::int64_t extent : {problem.batch, problem.heads_q, problem.seq_q, problem.seq_k}) {
    if (__builtin_mul_overflow(bytes, extent, &bytes))
      return Support::no("its scores have more bytes than 64 bits count");
  }
  if (problem.resume) return Support::no("does not resume from an earlier result");
  if (problem.dtype == DType::f64) return Support::no("the reference alone takes f64");
  if (problem.add_gradients) return Support::no("does not add to gradients");
  if (problem.dtype_of_gradients() != problem.dtype) {
    return Support::no("writes gradients in the dtype of the tensors only");
  }
  if (problem.mask.detach_mixing) return Support::no("does not detach the weights of mixed patterns");
  if (problem.softcap != 0 && problem.mask.patterns_per_head() > 1)
    return Support::no("does not cap mixed patterns");
  if (problem.mask.dilation_count > 0 && problem.mask.block_rows > 0) {
    return Support::no("does not combine block lists with dilation");
  }
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
