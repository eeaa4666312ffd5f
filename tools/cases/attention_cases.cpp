#include "attention_cases.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "case_tools.h"
#include "device_buffers.h"
#include "headroom/cpu.h"
#include "headroom/ops.h"

namespace headroom {
namespace {

struct Inputs {
  Guarded query, key, value, output_gradient, lse_gradient, sinks;
  AttentionCaseLists lists;
};

Inputs make_inputs(const AttentionCase& c) {
  const AttentionProblem& p = c.problem;
  Inputs inputs;
  const Shape rows{p.batch, p.seq_q, p.heads_q, p.head_dim};
  const Shape keys{p.batch, p.seq_k, p.heads_kv, p.head_dim};
  inputs.query = Guarded(p.dtype, rows, c.strided, c.odd);
  inputs.key = Guarded(p.dtype, keys, c.strided, c.odd);
  inputs.value = Guarded(p.dtype, keys, c.strided, c.odd);
  inputs.output_gradient = Guarded(p.dtype_of_output(), rows, c.strided, c.odd);
  inputs.query.fill_normal(Random(1), c.spread);
  inputs.key.fill_normal(Random(2), c.spread);
  inputs.value.fill_normal(Random(3), 1);
  inputs.output_gradient.fill_normal(Random(4), 1);
  if (c.lse_gradient) {
    inputs.lse_gradient = Guarded(DType::f32, {p.batch, p.heads_q, p.seq_q}, false);
    inputs.lse_gradient.fill_normal(Random(5), 1);
  }
  if (p.sinks) {
    inputs.sinks = Guarded(DType::f32, {p.heads_q}, false);
    inputs.sinks.fill_normal(Random(6), 1);
  }
  inputs.lists = attention_case_lists(c);
  return inputs;
}

// As tensor cores read them in tf32.
Inputs in_tf32(Inputs inputs) {
  for (const Guarded* tensor : {&inputs.query, &inputs.key, &inputs.value, &inputs.output_gradient}) {
    tensor->for_each([&](std::int64_t offset) {
      float& x = tensor->view().data<float>()[offset];
      x = rounded_to_tf32(x);
    });
  }
  return inputs;
}

struct Results {
  std::array<std::vector<double>, AttentionErrors::kResults> values;
  bool canaries_alive = true;
};

// The dtypes of what an implementation writes.
struct ResultTypes {
  DType output;
  DType gradients;
  DType statistics;
};

constexpr ResultTypes kExact{DType::f64, DType::f64, DType::f64};

ResultTypes types_of(const AttentionProblem& problem) {
  return {problem.dtype_of_output(), problem.dtype, DType::f32};
}

// The results of a case in memory between canaries.
struct CaseResults {
  CaseResults(const AttentionCase& c, const AttentionProblem& problem, const ResultTypes& types)
      : output(types.output, rows_of(problem), c.strided, c.odd),
        lse(types.statistics, {problem.batch, problem.heads_q, problem.seq_q}, false),
        query_gradient(types.gradients, rows_of(problem), c.strided, c.odd),
        key_gradient(types.gradients, keys_of(problem), c.strided, c.odd),
        value_gradient(types.gradients, keys_of(problem), c.strided, c.odd),
        sinks_gradient(types.statistics, {problem.sinks ? problem.heads_q : 0}, false) {}

  [[nodiscard]] AttentionBackward views(const Inputs& inputs, const AttentionProblem& problem) const {
    const AttentionForward lists = inputs.lists.views(problem);
    return {.forward = {.query = inputs.query.view(),
                        .key = inputs.key.view(),
                        .value = inputs.value.view(),
                        .sinks = inputs.sinks.view(),
                        .document_starts = lists.document_starts,
                        .blocks = lists.blocks,
                        .output = output.view(),
                        .lse = lse.view(),
                        .saved = {}},
            .output_gradient = inputs.output_gradient.view(),
            .lse_gradient = inputs.lse_gradient.view(),
            .query_gradient = query_gradient.view(),
            .key_gradient = key_gradient.view(),
            .value_gradient = value_gradient.view(),
            .sinks_gradient = sinks_gradient.view()};
  }
  [[nodiscard]] std::array<const Guarded*, AttentionErrors::kResults> all() const {
    return {&output, &lse, &query_gradient, &key_gradient, &value_gradient, &sinks_gradient};
  }
  // With the truth, or with what is no number.
  void fill(const Results& truth, bool with_truth) const {
    for (std::size_t i = 0; i < truth.values.size(); ++i) {
      auto value = truth.values[i].begin();
      all()[i]->for_each([&](std::int64_t offset) {
        write_element(all()[i]->view(), offset,
                      with_truth ? *value++ : std::numeric_limits<double>::quiet_NaN());
      });
    }
  }
  [[nodiscard]] Results read() const {
    Results results;
    for (std::size_t i = 0; i < results.values.size(); ++i) {
      results.values[i] = all()[i]->values();
      results.canaries_alive &= all()[i]->canaries_alive();
    }
    return results;
  }

  Guarded output, lse, query_gradient, key_gradient, value_gradient, sinks_gradient;

 private:
  static Shape rows_of(const AttentionProblem& p) { return {p.batch, p.seq_q, p.heads_q, p.head_dim}; }
  static Shape keys_of(const AttentionProblem& p) { return {p.batch, p.seq_k, p.heads_kv, p.head_dim}; }
};

Results run(const AttentionCase& c, const AttentionProblem& problem,
            const AttentionImplementation& implementation, const Inputs& inputs, const ResultTypes& types,
            const Stream& host, Backend* backend = nullptr) {
  const CaseResults into(c, problem, types);

  const DeviceDescription& device = backend == nullptr ? *host.device : backend->description();
  const Scratch saved(implementation.saved_bytes(problem));
  const Scratch forward_workspace(implementation.workspace_bytes(problem, device, Pass::forward));
  const Scratch backward_workspace(implementation.workspace_bytes(problem, device, Pass::backward));

  AttentionBackward backward = into.views(inputs, problem);
  backward.forward.saved = saved.view();
  const AttentionForward& forward = backward.forward;
  const auto run_both = [&](const auto& moved, const Stream& stream) {
    const AttentionForward f{.query = moved(forward.query),
                             .key = moved(forward.key),
                             .value = moved(forward.value),
                             .sinks = moved(forward.sinks),
                             .document_starts = moved(forward.document_starts),
                             .blocks = moved(forward.blocks),
                             .output = moved(forward.output),
                             .lse = moved(forward.lse),
                             .saved = moved(forward.saved)};
    implementation.forward(problem, f, moved(forward_workspace.view()), stream);
    implementation.backward(problem,
                            {.forward = f,
                             .output_gradient = moved(backward.output_gradient),
                             .lse_gradient = moved(backward.lse_gradient),
                             .query_gradient = moved(backward.query_gradient),
                             .key_gradient = moved(backward.key_gradient),
                             .value_gradient = moved(backward.value_gradient),
                             .sinks_gradient = moved(backward.sinks_gradient)},
                            moved(backward_workspace.view()), stream);
  };
  if (backend == nullptr) {
    run_both([](const TensorView& view) { return view; }, host);
  } else {
    const auto list_memory = [](const std::vector<std::int32_t>& list) {
      return std::as_writable_bytes(std::span(const_cast<std::vector<std::int32_t>&>(list)));
    };
    std::vector<std::span<std::byte>> buffers = {inputs.query.memory(),
                                                 inputs.key.memory(),
                                                 inputs.value.memory(),
                                                 inputs.output_gradient.memory(),
                                                 inputs.lse_gradient.memory(),
                                                 inputs.sinks.memory(),
                                                 list_memory(inputs.lists.document_starts),
                                                 list_memory(inputs.lists.blocks),
                                                 into.output.memory(),
                                                 into.lse.memory(),
                                                 into.query_gradient.memory(),
                                                 into.key_gradient.memory(),
                                                 into.value_gradient.memory(),
                                                 into.sinks_gradient.memory(),
                                                 saved.memory(),
                                                 forward_workspace.memory(),
                                                 backward_workspace.memory()};
    std::erase_if(buffers, [](const std::span<std::byte> buffer) { return buffer.empty(); });
    with_buffers(*backend, buffers, run_both);
  }

  Results results = into.read();
  results.canaries_alive &=
      saved.canaries_alive() && forward_workspace.canaries_alive() && backward_workspace.canaries_alive();
  return results;
}

}  // namespace

double AttentionErrors::worst() const {
  if (!canaries_alive) return std::numeric_limits<double>::infinity();
  return largest_ratio(ours, allowed);
}

AttentionCaseLists attention_case_lists(const AttentionCase& c) {
  const AttentionProblem& p = c.problem;
  AttentionCaseLists lists;
  for (std::int64_t b = 0; b < p.batch && !c.document_lengths.empty(); ++b) {
    std::int32_t start = 0;
    lists.document_starts.push_back(start);
    for (const std::int64_t length : c.document_lengths) {
      lists.document_starts.push_back(start += static_cast<std::int32_t>(length));
    }
  }
  const Mask& mask = p.mask;
  if (mask.block_rows > 0) {
    const std::int64_t tiles = (p.seq_q + mask.block_rows - 1) / mask.block_rows;
    const std::int64_t columns = (p.seq_k + mask.block_columns - 1) / mask.block_columns;
    const std::int64_t stride = mask.max_blocks_per_row + (c.strided ? 3 : 0);
    const std::int64_t sequences = c.strided ? 1 : p.batch;
    lists.block_strides = {c.strided ? 0 : p.heads_kv * tiles * stride, tiles * stride, stride, 1};
    const Random random(7);
    for (std::int64_t i = 0; i < sequences * p.heads_kv * tiles; ++i) {
      // Up to max_blocks_per_row different key tiles, rising; some rows have none.
      std::vector<std::int32_t> row;
      for (std::int64_t j = 0; j < mask.max_blocks_per_row; ++j) {
        row.push_back(static_cast<std::int32_t>(
            random.below(static_cast<std::uint64_t>(i * 8 + j), static_cast<std::uint64_t>(columns))));
      }
      std::ranges::sort(row);
      row.erase(std::ranges::unique(row).begin(), row.end());
      if (i % 5 == 3) row.clear();
      row.resize(static_cast<std::size_t>(mask.max_blocks_per_row), -1);
      row.resize(static_cast<std::size_t>(stride), 0);  // what no list holds
      lists.blocks.insert(lists.blocks.end(), row.begin(), row.end());
    }
  }
  return lists;
}

AttentionForward AttentionCaseLists::views(const AttentionProblem& problem) const {
  AttentionForward forward;
  if (!document_starts.empty()) {
    forward.document_starts = TensorView(const_cast<std::int32_t*>(document_starts.data()), DType::i32,
                                         {problem.batch, problem.mask.max_documents + 1});
  }
  if (!blocks.empty()) {
    const std::int64_t tiles = (problem.seq_q + problem.mask.block_rows - 1) / problem.mask.block_rows;
    forward.blocks =
        TensorView(const_cast<std::int32_t*>(blocks.data()), DType::i32,
                   {problem.batch, problem.heads_kv, tiles, problem.mask.max_blocks_per_row}, block_strides);
  }
  return forward;
}

const AttentionImplementation& find_attention(std::string_view name) {
  for (const AttentionImplementation& row : attention_implementations()) {
    if (row.name == name) return row;
  }
  fail(ErrorKind::input, "implementation '{}' is unknown", name);
}

namespace {

// dSink sums exp(sink - lse) (dO . O) over rows. Storing O rounds each of its elements by up to half a unit:
// the standard deviation of what that does to the sum, of the head where it is largest. A case has a few
// heads only, so the plain computation's own error may be far smaller by luck.
double rounding_of_sinks_gradient(const AttentionProblem& p, const Inputs& inputs, const Results& truth,
                                  double unit) {
  if (!p.sinks) return 0;
  const std::vector<double> gradient = inputs.output_gradient.values();
  const std::vector<double> sinks = inputs.sinks.values();
  std::vector<double> variance(sinks.size());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const std::size_t row = i / static_cast<std::size_t>(p.head_dim);  // [batch, seq_q, heads_q]
    const std::size_t head = row % sinks.size();
    const std::size_t sequence = row / sinks.size() / static_cast<std::size_t>(p.seq_q);
    const std::size_t query = row / sinks.size() % static_cast<std::size_t>(p.seq_q);
    const std::size_t statistic =
        (sequence * sinks.size() + head) * static_cast<std::size_t>(p.seq_q) + query;
    const double lse = truth.values[1][statistic];
    if (!std::isfinite(lse)) continue;
    const double moved = std::exp(sinks[head] - lse) * gradient[i] * truth.values[0][i] * unit;
    variance[head] += moved * moved / 12;
  }
  return std::sqrt(std::ranges::max(variance));
}

}  // namespace

AttentionErrors run_attention_case(const AttentionCase& c, std::string_view implementation, int threads) {
  CaseDevice cpu{.description = describe_cpu()};
  cpu.description.cores = threads;
  return run_attention_case(c, find_attention(implementation), threads, cpu);
}

namespace {

// The fp64 reference and the plain computation, which what a case runs is held against.
struct Judge {
  Judge(const AttentionCase& attention_case, int threads, bool in_tf32_products)
      : c(attention_case),
        tf32(in_tf32_products),
        cpu(describe_cpu()),
        pool(threads),
        inputs(make_inputs(c)) {
    cpu.cores = threads;
    truth = run(c, c.problem, find_attention("reference"), inputs, kExact, stream());
  }
  [[nodiscard]] Stream stream() { return {.device = &cpu, .pool = &pool, .poll = {}, .native = nullptr}; }
  [[nodiscard]] AttentionErrors errors_of(const Results& ours);

  const AttentionCase& c;
  bool tf32;
  DeviceDescription cpu;
  ThreadPool pool;
  Inputs inputs;
  Results truth;
};

AttentionErrors Judge::errors_of(const Results& ours) {
  // Plain: the naive computation, for a row that multiplies in tf32 from operands rounded to it. It mixes
  // patterns only with attached weights, and is as far from the truth there.
  const Inputs rounded = tf32 ? in_tf32(make_inputs(c)) : Inputs{};
  AttentionProblem plain_problem = c.problem;
  plain_problem.mask.detach_mixing = false;
  const Results plain_truth =
      c.problem.mask.detach_mixing
          ? run(c, plain_problem, find_attention("reference"), inputs, kExact, stream())
          : truth;
  const Results plain = run(c, plain_problem, find_attention("naive"), tf32 ? rounded : inputs,
                            types_of(plain_problem), stream());

  AttentionErrors errors;
  errors.canaries_alive = ours.canaries_alive;
  const auto largest_of = [&](std::size_t i) { return largest_magnitude(truth.values[i]); };
  // dQ, dK and dV are differences of terms as large as the largest of them: where they cancel, that is the
  // unit that counts.
  const double gradients = std::max({largest_of(2), largest_of(3), largest_of(4)});
  for (std::size_t i = 0; i < AttentionErrors::kResults; ++i) {
    const double largest = i >= 2 && i <= 4 ? gradients : largest_of(i);
    // A few results are exact in the plain computation (one key: P is 1, dQ is 0). Eight units of f32 in the
    // last place of the largest value, or one of tf32 or of a 16-bit type, are always allowed. LSE is f32
    // whatever the tensors are; dSink too, but it is made from the stored O.
    const DType dtype = i == 0 ? c.problem.dtype_of_output() : c.problem.dtype;
    const bool wide = (dtype == DType::f32 && !tf32) || i == 1;
    const double unit = tf32 ? 0x1p-10 : unit_in_last_place(dtype);
    const double floor = largest * (wide ? 0x1p-20 : unit);
    const double factor = i < 2 ? 2 : 3;
    double plain_error = largest_difference(plain_truth.values[i], plain.values[i]);
    if (i == 5 && size_bytes(c.problem.dtype_of_output()) == 2) {
      plain_error = std::max(plain_error, rounding_of_sinks_gradient(c.problem, inputs, truth, unit));
    }
    errors.ours[i] = largest_difference(truth.values[i], ours.values[i]);
    errors.allowed[i] = std::isfinite(plain_error) ? std::max(factor * plain_error, floor) : floor;
  }
  return errors;
}

}  // namespace

AttentionErrors run_attention_case(const AttentionCase& c, const AttentionImplementation& implementation,
                                   int threads, const CaseDevice& device) {
  Judge judge(c, threads, implementation.name == "tf32");
  const Stream our_stream{.device = &device.description, .pool = &judge.pool, .poll = {}, .native = nullptr};
  return judge.errors_of(
      run(c, c.problem, implementation, judge.inputs, types_of(c.problem), our_stream, device.backend));
}

AttentionErrors run_attention_case(const AttentionCase& c,
                                   const std::function<void(const AttentionBackward&)>& run, int threads,
                                   Writes writes) {
  Judge judge(c, threads, false);
  const CaseResults results(c, c.problem, types_of(c.problem));
  results.fill(judge.truth, writes == Writes::its_part);
  run(results.views(judge.inputs, c.problem));
  return judge.errors_of(results.read());
}

Support serves(const AttentionCase& c, std::string_view implementation) {
  return serves(c, implementation, describe_cpu());
}

Support serves(const AttentionCase& c, std::string_view implementation, const DeviceDescription& device) {
  return find_attention(implementation).supports(c.problem, device);
}

}  // namespace headroom
