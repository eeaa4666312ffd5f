// Attention as the mathematics says it, in double, one row at a time. No storage grows with seq^2; it is slow
// and meant to be read. Everything else is judged by it.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "attention/implementations.h"
#include "headroom/core/elements.h"
#include "headroom/cpu/thread_pool.h"

namespace headroom {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::size_t kMaxHeadDim = 256;
using Row = std::array<double, kMaxHeadDim>;

// What backward knows of a query row.
struct RowStatistics {
  double lse = -kInfinity;
  std::array<double, Mask::kMaxDilations> dot{};  // by pattern: dO . O - dLSE
};

double dot(const TensorView& a, std::int64_t a_offset, const TensorView& b, std::int64_t b_offset,
           std::int64_t count) {
  double sum = 0;
  for (std::int64_t c = 0; c < count; ++c)
    sum += read_element(a, a_offset + c) * read_element(b, b_offset + c);
  return sum;
}

// One query head of one sequence.
class Head {
 public:
  Head(const AttentionProblem& problem, const AttentionForward& views, std::int64_t batch, std::int64_t head)
      : problem_(problem),
        views_(views),
        batch_(batch),
        head_(head),
        kv_(head / (problem.heads_q / problem.heads_kv)) {
    for (int p = 0; p < patterns(); ++p) {
      masks_[static_cast<std::size_t>(p)] = mask_view(problem, views, batch, head, p);
    }
  }

  [[nodiscard]] int patterns() const { return problem_.mask.patterns_per_head(); }
  [[nodiscard]] const MaskView& mask(int pattern) const { return masks_[static_cast<std::size_t>(pattern)]; }
  [[nodiscard]] std::int64_t query(std::int64_t q) const { return views_.query.offset(batch_, q, head_); }
  [[nodiscard]] std::int64_t key(std::int64_t k) const { return views_.key.offset(batch_, k, kv_); }
  [[nodiscard]] std::int64_t value(std::int64_t k) const { return views_.value.offset(batch_, k, kv_); }

  // score <- scale * q . k, capped; slope is the cap's derivative
  [[nodiscard]] double score(std::int64_t q, std::int64_t k, double* slope = nullptr) const {
    const double raw =
        score_scale(problem_) * dot(views_.query, query(q), views_.key, key(k), problem_.head_dim);
    if (problem_.softcap == 0) {
      if (slope != nullptr) *slope = 1;
      return raw;
    }
    const double t = std::tanh(raw / problem_.softcap);
    if (slope != nullptr) *slope = 1 - t * t;
    return problem_.softcap * t;
  }

  // The lse before a row's first key: nothing, the sink, or that of the result it resumes from.
  [[nodiscard]] double start(std::int64_t q) const {
    if (problem_.resume) return read_element(views_.lse, views_.lse.offset(batch_, head_, q));
    return problem_.sinks ? views_.sinks.data<float>()[head_] : -kInfinity;
  }

  // lse over the given patterns' keys and what came before them.
  [[nodiscard]] double lse(std::int64_t q, int first_pattern, int last_pattern, double before) const {
    double row_max = before;
    visit(q, first_pattern, last_pattern,
          [&](std::int64_t k, int) { row_max = std::max(row_max, score(q, k)); });
    if (row_max == -kInfinity) return -kInfinity;
    double row_sum = before == -kInfinity ? 0 : std::exp(before - row_max);
    visit(q, first_pattern, last_pattern,
          [&](std::int64_t k, int) { row_sum += std::exp(score(q, k) - row_max); });
    return row_max + std::log(row_sum);
  }

  // O of the given patterns, normalised by the given lse.
  [[nodiscard]] Row output(std::int64_t q, int first_pattern, int last_pattern, double row_lse) const {
    Row result{};
    visit(q, first_pattern, last_pattern, [&](std::int64_t k, int) {
      const double p = std::exp(score(q, k) - row_lse);
      for (std::int64_t c = 0; c < problem_.head_dim; ++c) {
        result[static_cast<std::size_t>(c)] += p * read_element(views_.value, value(k) + c);
      }
    });
    return result;
  }

  // Every (key, pattern) pair that query q attends to.
  template <class Visit>
  void visit(std::int64_t q, int first_pattern, int last_pattern, Visit body) const {
    for (int p = first_pattern; p < last_pattern; ++p) {
      const KeyRange range = mask(p).interval(q);
      for (std::int64_t k = range.begin; k < range.end; ++k) {
        if (mask(p).attends(q, k)) body(k, p);
      }
    }
  }

 private:
  const AttentionProblem& problem_;
  const AttentionForward& views_;
  std::int64_t batch_;
  std::int64_t head_;
  std::int64_t kv_;
  std::array<MaskView, Mask::kMaxDilations> masks_;
};

// Items (batch, head, row) as one index.
template <class Body>
void for_each_row(const Stream& stream, std::int64_t batches, std::int64_t heads, std::int64_t rows,
                  const Body& body) {
  parallel_for(stream, batches * heads * rows,
               [&](std::int64_t item) { body(item / (heads * rows), item / rows % heads, item % rows); });
}

void forward(const AttentionProblem& problem, const AttentionForward& views, TensorView,
             const Stream& stream) {
  for_each_row(stream, problem.batch, problem.heads_q, problem.seq_q,
               [&](std::int64_t b, std::int64_t h, std::int64_t q) {
                 const Head head(problem, views, b, h);
                 const double before = head.start(q);
                 const double lse = head.lse(q, 0, head.patterns(), before);
                 Row output = head.output(q, 0, head.patterns(), lse);
                 const bool resumes = problem.resume && before != -kInfinity;
                 for (std::int64_t c = 0; c < problem.head_dim; ++c) {
                   double& sum = output[static_cast<std::size_t>(c)];
                   const std::int64_t at = views.output.offset(b, q, h, c);
                   if (resumes) sum += std::exp(before - lse) * read_element(views.output, at);
                   write_element(views.output, at, sum);
                 }
                 write_element(views.lse, views.lse.offset(b, h, q), lse);
               });
}

RowStatistics row_statistics(const AttentionProblem& problem, const AttentionBackward& views, std::int64_t b,
                             std::int64_t h, std::int64_t q) {
  const Head head(problem, views.forward, b, h);
  RowStatistics row;
  row.lse = read_element(views.forward.lse, views.forward.lse.offset(b, h, q));
  if (row.lse == -kInfinity) return row;
  const double through_lse = views.lse_gradient.elements() == 0
                                 ? 0
                                 : read_element(views.lse_gradient, views.lse_gradient.offset(b, h, q));
  const auto dot_with = [&](const Row& output) {
    double sum = 0;
    for (std::int64_t c = 0; c < problem.head_dim; ++c) {
      sum += read_element(views.output_gradient, views.output_gradient.offset(b, q, h, c)) *
             output[static_cast<std::size_t>(c)];
    }
    return sum - through_lse;
  };
  Row output{};
  for (std::int64_t c = 0; c < problem.head_dim; ++c) {
    output[static_cast<std::size_t>(c)] =
        read_element(views.forward.output, views.forward.output.offset(b, q, h, c));
  }
  const double whole = dot_with(output);
  for (int p = 0; p < head.patterns(); ++p) {
    // With the mixing weights taken for constants a pattern's softmax is its own, and so is its output.
    row.dot[static_cast<std::size_t>(p)] =
        problem.mask.detach_mixing ? dot_with(head.output(q, p, p + 1, head.lse(q, p, p + 1, -kInfinity)))
                                   : whole;
  }
  return row;
}

// gradient[offset] <- value, or what is there and value
void store_gradient(const AttentionProblem& problem, const TensorView& gradient, std::int64_t offset,
                    double value) {
  write_element(gradient, offset, problem.add_gradients ? read_element(gradient, offset) + value : value);
}

void backward(const AttentionProblem& problem, const AttentionBackward& views, TensorView workspace,
              const Stream& stream) {
  auto* statistics = reinterpret_cast<RowStatistics*>(workspace.data<std::uint8_t>());
  const AttentionForward& inputs = views.forward;
  const double scale = score_scale(problem);
  const std::int64_t d = problem.head_dim;
  const auto statistics_of = [&](std::int64_t b, std::int64_t h, std::int64_t q) -> RowStatistics& {
    return statistics[statistics_row(problem, b, h, q)];
  };
  for_each_row(stream, problem.batch, problem.heads_q, problem.seq_q,
               [&](std::int64_t b, std::int64_t h, std::int64_t q) {
                 statistics_of(b, h, q) = row_statistics(problem, views, b, h, q);
               });

  // p <- exp(score - lse); ds <- p (dO . v - dot) * slope
  struct Gradients {
    double p = 0;
    double ds = 0;
  };
  const auto gradients = [&](const Head& head, std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k,
                             int pattern) {
    const RowStatistics& row = statistics_of(b, h, q);
    double slope = 1;
    const double p = std::exp(head.score(q, k, &slope) - row.lse);
    const double dp =
        dot(views.output_gradient, views.output_gradient.offset(b, q, h), inputs.value, head.value(k), d);
    return Gradients{p, p * (dp - row.dot[static_cast<std::size_t>(pattern)]) * slope};
  };

  // dQ <- scale * dS K
  for_each_row(stream, problem.batch, problem.heads_q, problem.seq_q,
               [&](std::int64_t b, std::int64_t h, std::int64_t q) {
                 const Head head(problem, inputs, b, h);
                 Row sum{};
                 head.visit(q, 0, head.patterns(), [&](std::int64_t k, int pattern) {
                   const double ds = gradients(head, b, h, q, k, pattern).ds;
                   for (std::int64_t c = 0; c < d; ++c) {
                     sum[static_cast<std::size_t>(c)] +=
                         scale * ds * read_element(inputs.key, head.key(k) + c);
                   }
                 });
                 for (std::int64_t c = 0; c < d; ++c) {
                   store_gradient(problem, views.query_gradient, views.query_gradient.offset(b, q, h, c),
                                  sum[static_cast<std::size_t>(c)]);
                 }
               });

  // dK <- scale * dS^T Q, dV <- P^T dO, over the query heads that share the key's head
  const std::int64_t group = problem.heads_q / problem.heads_kv;
  for_each_row(stream, problem.batch, problem.heads_kv, problem.seq_k,
               [&](std::int64_t b, std::int64_t kv, std::int64_t k) {
                 Row key_sum{};
                 Row value_sum{};
                 for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
                   const Head head(problem, inputs, b, h);
                   for (std::int64_t q = 0; q < problem.seq_q; ++q) {
                     for (int pattern = 0; pattern < head.patterns(); ++pattern) {
                       if (!head.mask(pattern).attends(q, k)) continue;
                       const Gradients g = gradients(head, b, h, q, k, pattern);
                       for (std::int64_t c = 0; c < d; ++c) {
                         key_sum[static_cast<std::size_t>(c)] +=
                             scale * g.ds * read_element(inputs.query, head.query(q) + c);
                         value_sum[static_cast<std::size_t>(c)] +=
                             g.p *
                             read_element(views.output_gradient, views.output_gradient.offset(b, q, h, c));
                       }
                     }
                   }
                 }
                 for (std::int64_t c = 0; c < d; ++c) {
                   store_gradient(problem, views.key_gradient, views.key_gradient.offset(b, k, kv, c),
                                  key_sum[static_cast<std::size_t>(c)]);
                   store_gradient(problem, views.value_gradient, views.value_gradient.offset(b, k, kv, c),
                                  value_sum[static_cast<std::size_t>(c)]);
                 }
               });

  // dSink <- -sum over rows of exp(sink - lse) * dot
  if (!problem.sinks) return;
  for (std::int64_t h = 0; h < problem.heads_q; ++h) {
    double sum = 0;
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      for (std::int64_t q = 0; q < problem.seq_q; ++q) {
        const RowStatistics& row = statistics_of(b, h, q);
        if (row.lse == -kInfinity) continue;
        sum -= std::exp(inputs.sinks.data<float>()[h] - row.lse) * row.dot[0];
      }
    }
    write_element(views.sinks_gradient, h, sum);
  }
}

Support supports(const AttentionProblem& problem, const DeviceDescription& device) {
  if (device.kind != DeviceKind::cpu) return Support::no("runs on the CPU only");
  if (problem.mask.detach_mixing && problem.sinks)
    return Support::no("detached mixing with sinks has no definition");
  return Support::yes();
}

std::int64_t workspace_bytes(const AttentionProblem& problem, const DeviceDescription&, Pass pass) {
  if (pass == Pass::forward) return 0;
  return problem.batch * problem.heads_q * problem.seq_q * static_cast<std::int64_t>(sizeof(RowStatistics));
}

}  // namespace

const AttentionImplementation& reference_attention() {
  static constexpr AttentionImplementation kReference{
      "reference", supports, workspace_bytes, [](const AttentionProblem&) -> std::int64_t { return 0; },
      forward,     backward};
  return kReference;
}

}  // namespace headroom
