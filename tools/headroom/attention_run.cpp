#include "attention_run.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <sstream>
#include <utility>

#include "bench.h"
#include "headroom/core/bytes.h"
#include "headroom/core/elements.h"
#include "headroom/core/files.h"
#include "headroom/core/parse.h"
#include "headroom/core/text.h"

namespace headroom {
namespace {

std::vector<std::int32_t> read_documents(std::string_view path, std::int64_t seq) {
  constexpr std::int64_t kMaxBytes = 64 * kMiB;
  check(!path.empty(), "mask 'documents:' names no file");
  std::istringstream lengths(read_small_file(path, kMaxBytes));
  std::vector<std::int32_t> starts = {0};
  std::int64_t start = 0;
  for (std::string length; start < seq && lengths >> length;) {
    start += std::min(parse_whole(fmt::format("{}: document length", path), length, 0), seq - start);
    starts.push_back(static_cast<std::int32_t>(start));
  }
  if (start < seq) starts.push_back(static_cast<std::int32_t>(seq));
  return starts;
}

}  // namespace

std::vector<std::int32_t> apply_mask(AttentionProblem& problem, std::string_view text) {
  constexpr std::string_view kDocuments = "documents:";
  std::vector<std::int32_t> starts;
  std::string rules;
  for (const std::string_view part : parse_list(fmt::format("mask {}", quote(text)), text, '+')) {
    if (part.starts_with(kDocuments)) {
      check(starts.empty(), "mask {} has 'documents' twice", quote(text));
      starts = read_documents(part.substr(kDocuments.size()), problem.seq_k);
    } else {
      rules += fmt::format("{}{}", rules.empty() ? "" : "+", part);
    }
  }
  problem.mask = parse_mask(rules.empty() ? "full" : rules);
  problem.mask.max_documents = std::max<std::int64_t>(std::ssize(starts) - 1, 0);
  return starts;
}

AttentionRun::AttentionRun(Context& context, const AttentionRunCase& c,
                           const AttentionImplementation& implementation, std::int64_t copies)
    : context_(context), case_(c), sets_(static_cast<std::size_t>(copies)) {
  if (!context.phantom() && context.device().kind != DeviceKind::cpu) pool_.emplace(usable_cores());
  context_.phase(Phase::load, [&] {
    Staging staging(context_);
    for (Set& set : sets_) load(set, implementation, staging);
  });
}

AttentionForward AttentionRun::Set::views() const {
  return {.query = query,
          .key = key,
          .value = value,
          .sinks = {},
          .document_starts = starts,
          .blocks = {},
          .output = output,
          .lse = lse,
          .saved = saved};
}

void AttentionRun::forward(std::size_t turn) {
  const Set& set = sets_[turn % sets_.size()];
  context_.phase(Phase::forward,
                 [&] { attention_forward(context_, case_.problem, set.views(), case_.implementation); });
}

void AttentionRun::backward(std::size_t turn) {
  const Set& set = sets_[turn % sets_.size()];
  context_.phase(Phase::backward, [&] {
    attention_backward(context_, case_.problem,
                       {.forward = set.views(),
                        .output_gradient = set.output_gradient,
                        .lse_gradient = {},
                        .query_gradient = set.query_gradient,
                        .key_gradient = set.key_gradient,
                        .value_gradient = set.value_gradient,
                        .sinks_gradient = {}},
                       case_.implementation);
  });
}

double AttentionRun::peak_flops() {
  double rate = 0;
  context_.phase(Phase::peak,
                 [&] { context_.run([&](const Stream& stream) { rate = measured_peak_flops(stream); }); });
  return rate;
}

Stream AttentionRun::with_host_threads(Stream stream) {
  if (pool_) stream.pool = &*pool_;
  return stream;
}

double AttentionRun::sampled_error() {
  constexpr std::int64_t kSamples = 6;  // rows of the first head, and as many of the last
  std::array<double, 2 * kSamples> errors{};
  context_.phase(Phase::compare, [&] {
    Staging staging(context_);
    std::array<std::vector<std::byte>, 5> memory;
    const Set& set = sets_[0];
    const AttentionForward views{.query = staging.on_host(set.query, memory[0]),
                                 .key = staging.on_host(set.key, memory[1]),
                                 .value = staging.on_host(set.value, memory[2]),
                                 .sinks = {},
                                 .document_starts = staging.on_host(set.starts, memory[3]),
                                 .blocks = {},
                                 .output = staging.on_host(set.output, memory[4]),
                                 .lse = {},
                                 .saved = {}};
    context_.run([&](const Stream& device_stream) {
      const AttentionProblem& p = case_.problem;
      parallel_for(with_host_threads(device_stream), std::ssize(errors), [&](std::int64_t i) {
        const std::int64_t head = i < kSamples ? 0 : p.heads_q - 1;
        const std::int64_t row = i % kSamples * (p.seq_q - 1) / (kSamples - 1);
        errors[static_cast<std::size_t>(i)] = output_row_error(p, views, p.batch - 1, head, row);
      });
    });
  });
  return *std::max_element(errors.begin(), errors.end());
}

void AttentionRun::load(Set& set, const AttentionImplementation& implementation, Staging& staging) {
  const AttentionProblem& p = case_.problem;
  const Shape rows{p.batch, p.seq_q, p.heads_q, p.head_dim};
  const Shape keys{p.batch, p.seq_k, p.heads_kv, p.head_dim};
  const auto make = [&](std::string_view name, DType dtype, const Shape& shape) {
    return context_.allocate({.name = name,
                              .category = Category::attention,
                              .dtype = dtype,
                              .shape = shape,
                              .lifetime = Lifetime::run});
  };
  set.query = make("query", p.dtype, rows);
  set.key = make("key", p.dtype, keys);
  set.value = make("value", p.dtype, keys);
  set.output = make("output", p.dtype, rows);
  set.lse = make("lse", DType::f32, {p.batch, p.heads_q, p.seq_q});
  set.output_gradient = make("output gradient", p.dtype, rows);
  set.query_gradient = make("query gradient", p.dtype, rows);
  set.key_gradient = make("key gradient", p.dtype, keys);
  set.value_gradient = make("value gradient", p.dtype, keys);
  set.saved = make("saved", DType::u8, {implementation.saved_bytes(p)});
  set.starts = make("document starts", DType::i32,
                    {p.mask.max_documents == 0 ? 0 : p.batch, p.mask.max_documents + 1});
  context_.run([&](const Stream& device_stream) {
    const Stream stream = with_host_threads(device_stream);  // random numbers are made on the host
    std::uint64_t seed = 1;
    for (const Tensor* tensor : {&set.query, &set.key, &set.value, &set.output_gradient}) {
      fill_normal(*tensor, seed++, 1, staging, stream);
    }
    const std::int64_t documents = std::ssize(case_.document_starts);
    for (std::int64_t b = 0; b < set.starts.view().extent(0); ++b) {
      staging.upload({set.starts, b * documents, documents}, [&](std::span<std::byte> piece, std::int64_t) {
        std::memcpy(piece.data(), case_.document_starts.data(), piece.size());
      });
    }
  });
}

double output_row_error(const AttentionProblem& p, const AttentionForward& on_host, std::int64_t b,
                        std::int64_t h, std::int64_t q) {
  const MaskView mask = mask_view(p, on_host, b, h);
  const std::int64_t kv = h / (p.heads_q / p.heads_kv);
  std::vector<double> expected(static_cast<std::size_t>(p.head_dim));
  std::vector<std::pair<std::int64_t, double>> scores;
  double row_max = -INFINITY;
  const KeyRange range = mask.interval(q);
  for (std::int64_t k = range.begin; k < range.end; ++k) {
    if (!mask.attends(q, k)) continue;
    double score = 0;
    for (std::int64_t c = 0; c < p.head_dim; ++c) {
      score += read_element(on_host.query, on_host.query.offset(b, q, h, c)) *
               read_element(on_host.key, on_host.key.offset(b, k, kv, c));
    }
    scores.emplace_back(k, score / std::sqrt(static_cast<double>(p.head_dim)));
    row_max = std::max(row_max, scores.back().second);
  }
  double row_sum = 0;
  for (const auto& [k, score] : scores) row_sum += std::exp(score - row_max);
  for (const auto& [k, score] : scores) {
    const double probability = std::exp(score - row_max) / row_sum;
    for (std::int64_t c = 0; c < p.head_dim; ++c) {
      expected[static_cast<std::size_t>(c)] +=
          probability * read_element(on_host.value, on_host.value.offset(b, k, kv, c));
    }
  }
  double worst = 0;
  for (std::int64_t c = 0; c < p.head_dim; ++c) {
    const double error = std::abs(expected[static_cast<std::size_t>(c)] -
                                  read_element(on_host.output, on_host.output.offset(b, q, h, c)));
    if (!std::isfinite(error)) return INFINITY;
    worst = std::max(worst, error);
  }
  return worst;
}

}  // namespace headroom
