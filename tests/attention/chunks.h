// Attention over chunks of queries and keys, put together, held against the fp64 reference over the whole
// sequence.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "attention_cases.h"
#include "case_tools.h"
#include "headroom/cpu.h"
#include "memory/rehearsed.h"

namespace headroom {

// How chunks are run.
struct ChunkRunner {
  std::function<Support(const AttentionProblem&)> supports;
  std::function<std::int64_t(const AttentionProblem&)> saved_bytes;
  std::function<void(const AttentionProblem&, const AttentionForward&)> forward;
  std::function<void(const AttentionProblem&, const AttentionBackward&)> backward;
  std::function<void(const AttentionPartial& into, const AttentionPartial& from)> merge;
  std::function<void(const AttentionPartial& partial, const TensorView& row_sum, const TensorView& output)>
      close;
  bool multiplies_in_16_bits = false;  // probabilities and gradients of scores too, where inputs have 16 bits
};

// Each call in a context of its own, rehearsed and run.
template <class Body>
void in_context(const Body& body) {
  run_rehearsed([&](Context& context) { context.phase(Phase::step, [&] { body(context); }); });
}

// Through the public header, on the CPU.
inline ChunkRunner on_cpu(std::string_view name) {
  return {.supports =
              [name](const AttentionProblem& problem) {
                return find_attention(name).supports(problem, describe_cpu());
              },
          .saved_bytes =
              [name](const AttentionProblem& problem) { return find_attention(name).saved_bytes(problem); },
          .forward =
              [name](const AttentionProblem& problem, const AttentionForward& views) {
                in_context([&](Context& context) { attention_forward(context, problem, views, name); });
              },
          .backward =
              [name](const AttentionProblem& problem, const AttentionBackward& views) {
                in_context([&](Context& context) { attention_backward(context, problem, views, name); });
              },
          .merge =
              [](const AttentionPartial& into, const AttentionPartial& from) {
                in_context([&](Context& context) { merge_attention(context, into, from); });
              },
          .close =
              [](const AttentionPartial& partial, const TensorView& row_sum, const TensorView& output) {
                in_context([&](Context& context) { close_attention(context, partial, row_sum, output); });
              }};
}

// Numbers of one draw.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(random_.below(count_++, static_cast<std::uint64_t>(bound)));
  }
  bool coin() { return below(2) == 1; }
  // Up to `parts` uneven parts of [0, length), some of them empty.
  std::vector<KeyRange> cut(std::int64_t length, std::int64_t parts) {
    std::vector<std::int64_t> at = {0, length};
    for (std::int64_t i = 0; i < parts; ++i) at.push_back(below(length + 1));
    std::ranges::sort(at);
    std::vector<KeyRange> result;
    for (std::size_t i = 1; i < at.size(); ++i) result.push_back({at[i - 1], at[i]});
    return result;
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[static_cast<std::size_t>(below(static_cast<std::int64_t>(i)))]);
    }
  }

 private:
  Random random_;
  std::uint64_t count_ = 0;
};

// A whole sequence, drawn, and what the reference makes of it in double.
class WholeSequence {
 public:
  explicit WholeSequence(Draw& draw) {
    const std::array<DType, 3> dtypes = {DType::f32, DType::bf16, DType::f16};
    const std::array<std::int64_t, 4> head_dims = {8, 24, 64, 72};
    problem.batch = 1 + draw.below(2);
    problem.seq_q = problem.seq_k = 1 + draw.below(150);
    problem.heads_kv = 1 + draw.below(2);
    problem.heads_q = problem.heads_kv * (1 + draw.below(2));
    problem.head_dim = head_dims[static_cast<std::size_t>(draw.below(4))];
    problem.dtype = dtypes[static_cast<std::size_t>(draw.below(3))];
    problem.sinks = draw.coin();
    Mask& mask = problem.mask;
    mask.causal = draw.coin();
    if (draw.coin()) mask.window_left = draw.below(80);
    if (draw.coin()) mask.window_right = draw.below(80);
    if (draw.coin()) make_documents(draw);
    if (draw.coin()) make_dilations(draw);
    if (mask.dilation_count == 0 && draw.coin()) problem.softcap = 3;
    has_lse_gradient_ = draw.coin();
    strided_ = draw.coin();
    make_tensors();
    run_reference();
  }

  [[nodiscard]] std::string name() const {
    const Mask& mask = problem.mask;
    return fmt::format("{} b{} {} h{}/{} d{} causal {} window {} {} documents {} dilations {} mixed {}",
                       headroom::name(problem.dtype), problem.batch, problem.seq_q, problem.heads_q,
                       problem.heads_kv, problem.head_dim, mask.causal, mask.window_left, mask.window_right,
                       mask.max_documents, mask.dilation_count, mask.mix_dilations);
  }

  // The problem of a chunk. Its output is f32; one chunk of keys has the sinks.
  [[nodiscard]] AttentionProblem chunk(KeyRange queries, KeyRange keys, bool with_sinks, bool resume) const {
    AttentionProblem part = problem;
    part.seq_q = queries.size();
    part.seq_k = keys.size();
    part.chunk = {.query_start = queries.begin, .key_start = keys.begin};
    part.output_dtype = DType::f32;
    part.sinks = problem.sinks && with_sinks;
    part.resume = resume;
    return part;
  }
  [[nodiscard]] AttentionForward inputs(KeyRange queries, KeyRange keys) const {
    AttentionForward views;
    views.query = query_.view().slice(1, queries.begin, queries.size());
    views.key = key_.view().slice(1, keys.begin, keys.size());
    views.value = value_.view().slice(1, keys.begin, keys.size());
    views.sinks = sinks_.view();
    if (!starts_.empty()) {
      views.document_starts = TensorView(const_cast<std::int32_t*>(starts_.data()), DType::i32,
                                         {problem.batch, problem.mask.max_documents + 1});
    }
    return views;
  }
  [[nodiscard]] TensorView output_gradient(KeyRange queries) const {
    return output_gradient_.view().slice(1, queries.begin, queries.size());
  }
  [[nodiscard]] bool has_lse_gradient() const { return has_lse_gradient_; }
  [[nodiscard]] bool strided() const { return strided_; }
  [[nodiscard]] const Guarded& lse_gradient() const { return lse_gradient_; }

  AttentionProblem problem;
  // In double.
  Guarded output, lse, query_gradient, key_gradient, value_gradient, sinks_gradient;

 private:
  void make_documents(Draw& draw) {
    problem.mask.max_documents = 1 + draw.below(5);
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      std::vector<std::int32_t> starts = {0};
      for (std::int64_t i = 0; i < problem.mask.max_documents; ++i) {
        starts.push_back(static_cast<std::int32_t>(draw.below(problem.seq_k + 1)));
      }
      std::ranges::sort(starts);
      starts_.insert(starts_.end(), starts.begin(), starts.end());
    }
  }
  void make_dilations(Draw& draw) {
    Mask& mask = problem.mask;
    mask.mix_dilations = draw.coin();
    mask.dilation_count = mask.mix_dilations || problem.heads_q % 2 == 0 ? 2 : 1;
    for (int i = 0; i < mask.dilation_count; ++i) {
      mask.dilations[static_cast<std::size_t>(i)] = {1 + draw.below(90), 1 + draw.below(5)};
    }
  }
  void make_tensors() {
    const Shape rows{problem.batch, problem.seq_q, problem.heads_q, problem.head_dim};
    const Shape keys{problem.batch, problem.seq_k, problem.heads_kv, problem.head_dim};
    const Shape statistics{problem.batch, problem.heads_q, problem.seq_q};
    query_ = Guarded(problem.dtype, rows, strided_);
    key_ = Guarded(problem.dtype, keys, strided_);
    value_ = Guarded(problem.dtype, keys, strided_);
    output_gradient_ = Guarded(DType::f32, rows, strided_);
    lse_gradient_ = Guarded(DType::f32, statistics, false);
    sinks_ = Guarded(DType::f32, {problem.heads_q}, false);
    query_.fill_normal(Random(1), 1);
    key_.fill_normal(Random(2), 1);
    value_.fill_normal(Random(3), 1);
    output_gradient_.fill_normal(Random(4), 1);
    lse_gradient_.fill_normal(Random(5), 1);
    sinks_.fill_normal(Random(6), 1);
    output = Guarded(DType::f64, rows, false);
    lse = Guarded(DType::f64, statistics, false);
    query_gradient = Guarded(DType::f64, rows, false);
    key_gradient = Guarded(DType::f64, keys, false);
    value_gradient = Guarded(DType::f64, keys, false);
    sinks_gradient = Guarded(DType::f64, {problem.heads_q}, false);
  }
  void run_reference() {
    const AttentionImplementation& reference = find_attention("reference");
    const DeviceDescription device = describe_cpu();
    const Stream stream{.device = &device, .pool = nullptr, .poll = {}, .native = nullptr};
    AttentionForward views = inputs({0, problem.seq_q}, {0, problem.seq_k});
    views.output = output.view();
    views.lse = lse.view();
    const Scratch workspace(reference.workspace_bytes(problem, device, Pass::backward));
    reference.forward(problem, views, {}, stream);
    reference.backward(problem,
                       {.forward = views,
                        .output_gradient = output_gradient_.view(),
                        .lse_gradient = has_lse_gradient_ ? lse_gradient_.view() : TensorView{},
                        .query_gradient = query_gradient.view(),
                        .key_gradient = key_gradient.view(),
                        .value_gradient = value_gradient.view(),
                        .sinks_gradient = sinks_gradient.view()},
                       workspace.view(), stream);
  }

  Guarded query_, key_, value_, output_gradient_, lse_gradient_, sinks_;
  std::vector<std::int32_t> starts_;
  bool has_lse_gradient_ = false;
  bool strided_ = false;
};

// to <- to + part, where part's rows are those from `row` on, along `dimension`
inline void add_rows(const Guarded& to, const TensorView& part, int dimension, std::int64_t row) {
  const TensorView target = to.view().slice(dimension, row, part.extent(dimension));
  for (std::int64_t a = 0; a < part.extent(0); ++a) {
    for (std::int64_t b = 0; b < part.extent(1); ++b) {
      for (std::int64_t c = 0; c < part.extent(2); ++c) {
        for (std::int64_t d = 0; d < (part.rank() == 4 ? part.extent(3) : 1); ++d) {
          const auto offset = [&](const TensorView& view) {
            return view.offset(a, b, c) + (view.rank() == 4 ? d * view.stride(3) : 0);
          };
          write_element(target, offset(target),
                        read_element(target, offset(target)) + read_element(part, offset(part)));
        }
      }
    }
  }
}

inline Guarded zeros(const TensorView& like) {
  Guarded result(DType::f64, like.shape(), false);
  result.for_each([&](std::int64_t offset) { write_element(result.view(), offset, 0); });
  return result;
}

// Closes the rows in place, after it has closed them into the inputs' dtype: the same values, rounded.
inline void close_rows(const ChunkRunner& runner, const Guarded& output, const Guarded& lse,
                       const Guarded& row_sum, DType dtype, bool strided) {
  const Guarded narrow(dtype, output.view().shape(), strided);
  const Guarded narrow_lse(DType::f32, lse.view().shape(), false);
  narrow_lse.for_each([&](std::int64_t offset) { write_element(narrow_lse.view(), offset, 0); });
  add_rows(narrow_lse, lse.view(), 2, 0);
  runner.close({output.view(), narrow_lse.view()}, row_sum.view(), narrow.view());
  runner.close({output.view(), lse.view()}, row_sum.view(), output.view());
  const Guarded rounded(dtype, output.view().shape(), false);
  rounded.for_each([&](std::int64_t offset) { write_element(rounded.view(), offset, 0); });
  add_rows(rounded, output.view(), 1, 0);
  EXPECT_EQ(narrow.values(), rounded.values()) << "closed into " << name(dtype);
  EXPECT_EQ(narrow_lse.values(), lse.values());
  EXPECT_TRUE(narrow.canaries_alive() && narrow_lse.canaries_alive());
}

// One draw on a runner: forward of every chunk, merged, resumed or left open in a drawn order, then backward
// of every chunk with the output and lse of the whole. Whether the runner serves it.
inline bool expect_chunks_make_the_whole(const ChunkRunner& runner, const WholeSequence& whole, Draw& draw) {
  const AttentionProblem& problem = whole.problem;
  const std::vector<KeyRange> query_chunks = draw.cut(problem.seq_q, draw.below(3));
  std::vector<KeyRange> key_chunks = draw.cut(problem.seq_k, draw.below(4));
  if (!runner.supports(whole.chunk(query_chunks[0], key_chunks[0], true, false))) return false;
  const bool resumes = bool{runner.supports(whole.chunk(query_chunks[0], key_chunks[0], false, true))};
  AttentionProblem adding = whole.chunk(query_chunks[0], key_chunks[0], false, false);
  adding.gradient_dtype = DType::f32;
  adding.add_gradients = true;
  const bool adds = bool{runner.supports(adding)};
  const Guarded output = zeros(whole.output.view());
  const Guarded lse = zeros(whole.lse.view());
  const Guarded query_gradient = zeros(whole.query_gradient.view());
  const Guarded key_gradient = zeros(whole.key_gradient.view());
  const Guarded value_gradient = zeros(whole.value_gradient.view());
  const Guarded sinks_gradient = zeros(whole.sinks_gradient.view());
  const auto alive = [](const Guarded& tensor) { EXPECT_TRUE(tensor.canaries_alive()); };
  for (const KeyRange& queries : query_chunks) {
    draw.shuffle(key_chunks);
    const Shape rows{problem.batch, queries.size(), problem.heads_q, problem.head_dim};
    const Shape statistics{problem.batch, problem.heads_q, queries.size()};
    const Guarded merged(DType::f32, rows, whole.strided());
    const Guarded merged_lse(DType::f32, statistics, false);
    // Nothing has been seen, so that nothing of the output may be read.
    merged.for_each([&](std::int64_t offset) {
      merged.view().data<float>()[offset] = std::numeric_limits<float>::quiet_NaN();
    });
    merged_lse.for_each([&](std::int64_t offset) {
      merged_lse.view().data<float>()[offset] = -std::numeric_limits<float>::infinity();
    });
    const bool open = resumes && draw.coin();  // from chunk to chunk
    const Guarded row_sum(DType::f64, statistics, false);
    row_sum.for_each([&](std::int64_t offset) { row_sum.view().data<double>()[offset] = 0; });
    std::vector<AttentionProblem> problems;
    std::vector<Scratch> saved;
    for (std::size_t i = 0; i < key_chunks.size(); ++i) {
      const AttentionProblem part =
          whole.chunk(queries, key_chunks[i], i == 0, resumes && i > 0 && (open || draw.coin()));
      saved.emplace_back(runner.saved_bytes(part));
      problems.push_back(part);
      AttentionForward views = whole.inputs(queries, key_chunks[i]);
      views.saved = saved.back().view();
      if (part.resume || open) {
        views.output = merged.view();
        views.lse = merged_lse.view();
        if (open) views.row_sum = row_sum.view();
        runner.forward(part, views);
        continue;
      }
      const Guarded own(DType::f32, rows, whole.strided());
      const Guarded own_lse(DType::f32, statistics, false);
      views.output = own.view();
      views.lse = own_lse.view();
      runner.forward(part, views);
      runner.merge({merged.view(), merged_lse.view()}, {own.view(), own_lse.view()});
      alive(own);
    }
    if (open) close_rows(runner, merged, merged_lse, row_sum, problem.dtype, whole.strided());
    alive(merged);
    alive(row_sum);
    add_rows(output, merged.view(), 1, queries.begin);
    add_rows(lse, merged_lse.view(), 2, queries.begin);
    Guarded own_lse_gradient(DType::f32, statistics, false);
    if (whole.has_lse_gradient()) {
      own_lse_gradient.for_each(
          [&](std::int64_t offset) { write_element(own_lse_gradient.view(), offset, 0); });
      add_rows(own_lse_gradient, whole.lse_gradient().view().slice(2, queries.begin, queries.size()), 2, 0);
    }
    for (std::size_t i = 0; i < key_chunks.size(); ++i) {
      const KeyRange& keys = key_chunks[i];
      const Shape key_rows{problem.batch, keys.size(), problem.heads_kv, problem.head_dim};
      AttentionProblem part = problems[i];
      if (adds && draw.coin()) {
        part.gradient_dtype = DType::f32;
        part.add_gradients = draw.coin();
      }
      const Guarded own_query(part.dtype_of_gradients(), rows, whole.strided());
      const Guarded own_key(part.dtype_of_gradients(), key_rows, whole.strided());
      const Guarded own_value(part.dtype_of_gradients(), key_rows, whole.strided());
      // What is there before, where the gradients are added to it.
      const auto shift = [&](const Guarded& tensor, bool before) {
        if (!part.add_gradients) return;
        tensor.for_each([&](std::int64_t offset) {
          write_element(tensor.view(), offset, before ? 0.25 : read_element(tensor.view(), offset) - 0.25);
        });
      };
      for (const Guarded* tensor : {&own_query, &own_key, &own_value}) shift(*tensor, true);
      const Guarded own_sinks(DType::f32, {problem.heads_q}, false);
      AttentionForward views = whole.inputs(queries, keys);
      views.output = merged.view();
      views.lse = merged_lse.view();
      views.saved = saved[i].view();
      runner.backward(part,
                      {.forward = views,
                       .output_gradient = whole.output_gradient(queries),
                       .lse_gradient = whole.has_lse_gradient() ? own_lse_gradient.view() : TensorView{},
                       .query_gradient = own_query.view(),
                       .key_gradient = own_key.view(),
                       .value_gradient = own_value.view(),
                       .sinks_gradient = own_sinks.view()});
      for (const Guarded* tensor : {&own_query, &own_key, &own_value}) shift(*tensor, false);
      add_rows(query_gradient, own_query.view(), 1, queries.begin);
      add_rows(key_gradient, own_key.view(), 1, keys.begin);
      add_rows(value_gradient, own_value.view(), 1, keys.begin);
      for (std::int64_t h = 0; problems[i].sinks && h < problem.heads_q; ++h) {
        sinks_gradient.view().data<double>()[h] += own_sinks.view().data<float>()[h];
      }
      alive(own_query);
      alive(own_key);
      alive(own_value);
    }
  }
  const auto expect_near = [](const Guarded& truth, const Guarded& ours, double unit, double allowed,
                              std::string_view what) {
    EXPECT_LE(largest_difference(truth.values(), ours.values()), unit * allowed) << what;
  };
  // Outputs are f32 whatever the inputs; a chunk's gradients are rounded to the inputs' dtype.
  const double rounding = problem.dtype == DType::f32 ? 1e-5 : unit_in_last_place(problem.dtype);
  double gradients = 0;
  for (const Guarded* tensor : {&whole.query_gradient, &whole.key_gradient, &whole.value_gradient}) {
    gradients = std::max(gradients, largest_magnitude(tensor->values()));
  }
  const bool narrow = runner.multiplies_in_16_bits && problem.dtype != DType::f32;
  const double allowed = narrow ? 2 * rounding : rounding;
  expect_near(whole.output, output, 1, narrow ? rounding : 4e-6, "output");
  expect_near(whole.lse, lse, 1, 4e-6, "lse");
  expect_near(whole.query_gradient, query_gradient, gradients, allowed, "dQ");
  expect_near(whole.key_gradient, key_gradient, gradients, allowed, "dK");
  expect_near(whole.value_gradient, value_gradient, gradients, allowed, "dV");
  if (problem.sinks) {
    expect_near(whole.sinks_gradient, sinks_gradient, largest_magnitude(whole.sinks_gradient.values()) + 1,
                narrow ? rounding : 1e-5, "dSink");
  }
  return true;
}

// Draws from `first` on; how many the runner serves.
inline int run_chunk_draws(const ChunkRunner& runner, std::uint64_t first, int draws, bool f32_only = false) {
  int served = 0;
  for (std::uint64_t seed = first; seed < first + static_cast<std::uint64_t>(draws); ++seed) {
    Draw draw(seed);
    const WholeSequence whole(draw);
    SCOPED_TRACE(fmt::format("draw {}: {}", seed, whole.name()));
    if (f32_only && whole.problem.dtype != DType::f32) continue;
    served += expect_chunks_make_the_whole(runner, whole, draw);
    if (testing::Test::HasFailure()) break;
  }
  return served;
}

}  // namespace headroom
