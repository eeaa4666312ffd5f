#include "attention_cases.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "case_tools.h"
#include "headroom/cpu.h"
#include "headroom/ops.h"

namespace headroom {
namespace {

// ---- the list

Mask window(std::int64_t left, std::int64_t right, bool causal = false) {
  Mask mask;
  mask.causal = causal;
  mask.window_left = left;
  mask.window_right = right;
  return mask;
}

Mask causal() {
  return window(Mask::kUnlimited, Mask::kUnlimited, true);
}

std::string describe(const Mask& mask) {
  std::string text = mask.causal ? "causal" : "full";
  if (mask.window_left != Mask::kUnlimited) text += fmt::format(" left {}", mask.window_left);
  if (mask.window_right != Mask::kUnlimited) text += fmt::format(" right {}", mask.window_right);
  for (int i = 0; i < mask.dilation_count; ++i) {
    const Dilation& dilation = mask.dilations[static_cast<std::size_t>(i)];
    text +=
        fmt::format(" {}{}/{}", mask.mix_dilations ? "mixed " : "dilated ", dilation.segment, dilation.rate);
  }
  if (mask.detach_mixing) text += " detached";
  if (mask.block_rows > 0) text += fmt::format(" blocks {}x{}", mask.block_rows, mask.block_columns);
  return text;
}

class CaseList {
 public:
  void add(const std::string& group, const AttentionProblem& problem,
           std::vector<std::int64_t> documents = {}) {
    AttentionCase added{
        .group = group, .name = {}, .problem = problem, .document_lengths = std::move(documents)};
    added.problem.mask.max_documents = static_cast<std::int64_t>(added.document_lengths.size());
    added.name = fmt::format("{} b{} {}x{} h{}/{} d{} {}", name(problem.dtype), problem.batch, problem.seq_q,
                             problem.seq_k, problem.heads_q, problem.heads_kv, problem.head_dim,
                             describe(problem.mask));
    if (problem.softcap != 0) added.name += " softcap";
    if (problem.sinks) added.name += " sinks";
    if (!added.document_lengths.empty())
      added.name += fmt::format(" documents {}", added.document_lengths.size());
    cases_.push_back(std::move(added));
  }
  AttentionCase& last() { return cases_.back(); }
  [[nodiscard]] std::vector<AttentionCase> so_far() const { return cases_; }
  std::vector<AttentionCase> take() { return std::move(cases_); }

 private:
  std::vector<AttentionCase> cases_;
};

AttentionProblem sized(std::int64_t seq_q, std::int64_t seq_k, std::int64_t head_dim, DType dtype,
                       const Mask& mask) {
  return {.batch = 1,
          .seq_q = seq_q,
          .seq_k = seq_k,
          .heads_q = 1,
          .heads_kv = 1,
          .head_dim = head_dim,
          .dtype = dtype,
          .mask = mask};
}

constexpr std::array kDTypes = {DType::f32, DType::bf16, DType::f16};

void add_sizes(CaseList& list) {
  const std::array masks = {Mask{}, causal(), window(7, 0, true), window(3, 5), window(40, Mask::kUnlimited)};
  const std::array<std::pair<std::int64_t, std::int64_t>, 13> sizes = {{{1, 1},
                                                                        {1, 239},
                                                                        {3, 799},
                                                                        {113, 203},
                                                                        {97, 97},
                                                                        {192, 192},
                                                                        {193, 385},
                                                                        {128, 256},
                                                                        {5, 3},
                                                                        {200, 60},
                                                                        {0, 5},
                                                                        {5, 0},
                                                                        {300, 300}}};
  for (const auto& [seq_q, seq_k] : sizes) {
    for (const Mask& mask : masks) {
      for (const DType dtype : kDTypes) list.add("sizes", sized(seq_q, seq_k, 16, dtype, mask));
    }
  }
  for (const Mask& mask : {Mask{}, causal(), window(100, 0, true)}) {
    list.add("large", sized(1023, 1024, 8, DType::f32, mask));
  }
  list.add("large", sized(4224, 4224, 8, DType::f32, causal()));
  list.add("large", sized(4224, 4224, 16, DType::bf16, window(300, 0, true)));
}

void add_head_dims(CaseList& list) {
  for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
    list.add("head sizes", sized(70, 130, head_dim, DType::f32, causal()));
    list.add("head sizes", sized(101, 67, head_dim, head_dim % 16 == 0 ? DType::bf16 : DType::f16, Mask{}));
  }
}

void add_heads(CaseList& list) {
  const std::array<std::pair<std::int64_t, std::int64_t>, 4> heads = {{{8, 1}, {8, 2}, {6, 3}, {4, 4}}};
  for (const auto& [heads_q, heads_kv] : heads) {
    for (const Mask& mask : {Mask{}, causal()}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        AttentionProblem problem = sized(75, 75, 32, dtype, mask);
        problem.batch = 2;
        problem.heads_q = heads_q;
        problem.heads_kv = heads_kv;
        list.add("grouped heads", problem);
        list.add("strided", problem);
        list.last().strided = true;
      }
    }
  }
}

void add_documents(CaseList& list) {
  const std::vector<std::vector<std::int64_t>> lengths = {
      {1}, {200}, {0, 5, 0}, {1, 1, 1, 1}, {100, 1, 0, 57, 42}, {3, 0, 0, 190, 7}};
  for (const auto& documents : lengths) {
    const std::int64_t tokens = std::accumulate(documents.begin(), documents.end(), std::int64_t{0});
    for (const Mask& mask : {Mask{}, causal(), window(9, 0, true)}) {
      for (const DType dtype : {DType::f32, DType::f16}) {
        AttentionProblem problem = sized(tokens, tokens, 24, dtype, mask);
        problem.batch = 2;
        problem.heads_q = 2;
        list.add("documents", problem, documents);
      }
    }
  }
}

void add_padded_documents(CaseList& list) {
  for (const Mask& mask : {Mask{}, causal(), window(20, 0, true)}) {
    for (const DType dtype : kDTypes) {
      AttentionProblem problem = sized(160, 160, 32, dtype, mask);
      problem.heads_q = 2;
      problem.sinks = dtype == DType::bf16;
      list.add("padded documents", problem, {50, 0, 71, 1});
    }
  }
}

void add_options(CaseList& list) {
  for (const float softcap : {0.0F, 3.0F}) {
    for (const bool sinks : {false, true}) {
      for (const bool lse_gradient : {false, true}) {
        for (const Mask& mask : {Mask{}, causal(), window(2, 0, true)}) {
          for (const DType dtype : {DType::f32, DType::bf16}) {
            AttentionProblem problem = sized(90, 90, 40, dtype, mask);
            problem.heads_q = 2;
            problem.softcap = softcap;
            problem.sinks = sinks;
            problem.scale = 0.3F;
            list.add("options", problem);
            list.last().lse_gradient = lse_gradient;
          }
        }
      }
    }
  }
  // Scores far apart: the running maximum moves, probabilities underflow.
  for (const DType dtype : kDTypes) {
    list.add("peaked", sized(150, 400, 64, dtype, causal()));
    list.last().spread = 6;
  }
}

void add_dilated(CaseList& list) {
  const std::vector<std::vector<Dilation>> patterns = {{{16, 2}}, {{64, 4}},  {{50, 3}},
                                                       {{64, 1}}, {{500, 5}}, {{32, 1}, {128, 4}}};
  for (const std::vector<Dilation>& pattern : patterns) {
    for (const bool is_causal : {false, true}) {
      for (const int documents : {0, 1}) {
        AttentionProblem problem =
            sized(211, 211, 16, documents == 1 ? DType::f32 : DType::bf16, is_causal ? causal() : Mask{});
        problem.heads_q = 4;
        problem.heads_kv = 2;
        problem.mask.dilation_count = static_cast<int>(pattern.size());
        std::copy(pattern.begin(), pattern.end(), problem.mask.dilations.begin());
        list.add("dilated", problem,
                 documents == 1 ? std::vector<std::int64_t>{70, 0, 1, 140} : std::vector<std::int64_t>{});
        if (pattern.size() < 2) continue;
        problem.mask.mix_dilations = true;
        list.add("mixed dilation", problem);
        problem.mask.detach_mixing = true;
        list.add("mixed dilation", problem);
      }
    }
  }
  // With everything else: sinks, a gradient through LSE, a softcap, a window, strides, documents.
  for (const DType dtype : kDTypes) {
    for (const bool mixed : {false, true}) {
      AttentionProblem problem = sized(150, 150, 24, dtype, window(60, 0, true));
      problem.batch = 2;
      problem.heads_q = 4;
      problem.heads_kv = 2;
      problem.sinks = true;
      problem.softcap = mixed ? 0.0F : 4.0F;
      problem.mask.dilations = {Dilation{40, 1}, Dilation{110, 3}};
      problem.mask.dilation_count = 2;
      problem.mask.mix_dilations = mixed;
      list.add(mixed ? "mixed dilation" : "dilated", problem, {60, 1, 0, 80, 9});
      list.last().lse_gradient = true;
      list.last().strided = true;
      if (!mixed) continue;
      problem.sinks = false;
      problem.mask.detach_mixing = true;
      list.add("mixed dilation", problem, {60, 1, 0, 80, 9});
      list.last().lse_gradient = true;
    }
  }
}

void add_blocks(CaseList& list) {
  for (const auto& [rows, columns] : {std::pair{16, 32}, std::pair{128, 64}, std::pair{7, 5}}) {
    for (const bool is_causal : {false, true}) {
      AttentionProblem problem =
          sized(210, 260, 32, is_causal ? DType::f32 : DType::bf16, is_causal ? causal() : Mask{});
      problem.heads_q = 2;
      problem.mask.block_rows = rows;
      problem.mask.block_columns = columns;
      problem.mask.max_blocks_per_row = 4;
      list.add("block-sparse", problem);
      problem.mask.window_left = 100;
      problem.sinks = true;
      problem.heads_q = 4;
      problem.heads_kv = 2;
      list.add("block-sparse", problem);
      list.last().lse_gradient = true;
      problem.seq_k = problem.seq_q;
      list.add("block-sparse", problem, {130, 0, 80});
    }
  }
}

// In the dtypes of tensor cores, at every head size: blocks that are whole tiles, and blocks that cross them.
void add_blocks_in_16_bits(CaseList& list) {
  for (const std::int64_t head_dim : {64, 80, 128, 192, 256}) {
    for (const bool crosses : {false, true}) {
      AttentionProblem problem =
          sized(300, 390, head_dim, crosses ? DType::f16 : DType::bf16, crosses ? causal() : Mask{});
      problem.heads_q = 2;
      problem.mask.block_rows = crosses ? 40 : 128;
      problem.mask.block_columns = crosses ? 50 : 128;
      problem.mask.max_blocks_per_row = crosses ? 5 : 2;
      problem.softcap = crosses == (head_dim % 128 == 0) ? 5.0F : 0.0F;
      list.add("block-sparse", problem);
    }
  }
}

// What was listed with small heads in f32, again with larger ones, which other kernels serve: all that has
// dilations, blocks or strides, of the rest every fourth.
void add_larger_heads(CaseList& list) {
  constexpr std::array<std::int64_t, 4> kHeadDims = {48, 64, 104, 128};
  constexpr std::int64_t kSmall = 40;
  std::size_t seen = 0;
  std::size_t added = 0;
  for (const AttentionCase& c : list.so_far()) {
    if (c.problem.dtype != DType::f32 || c.problem.head_dim >= kSmall || c.group == "large") continue;
    const bool special = c.problem.mask.dilation_count > 0 || c.problem.mask.block_rows > 0 || c.strided;
    if (++seen % 4 != 0 && !special) continue;
    AttentionProblem problem = c.problem;
    problem.head_dim = kHeadDims[added++ % kHeadDims.size()];
    list.add(c.group, problem, c.document_lengths);
    list.last().lse_gradient = c.lse_gradient;
    list.last().strided = c.strided;
    list.last().odd = c.strided && added % 2 == 0;
  }
  list.add("large", sized(1023, 1024, 64, DType::f32, causal()));
}

// ---- running one

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
  inputs.output_gradient = Guarded(p.dtype, rows, c.strided, c.odd);
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

// body(moved, stream), where moved(view) is a view's place in the device's memory: buffers go there before it
// and come back after it, canaries and all.
template <class Body>
void with_buffers(Backend& backend, std::span<const std::span<std::byte>> buffers, const Body& body) {
  const auto program = [&](Context& context) {
    context.phase("case", [&] {
      std::vector<Tensor> tensors;
      for (const std::span<std::byte> buffer : buffers) {
        tensors.push_back(context.allocate(
            {.name = "buffer", .dtype = DType::u8, .shape = {static_cast<std::int64_t>(buffer.size())}}));
      }
      const auto moved = [&](const TensorView& view) {
        const auto* data = static_cast<const std::byte*>(view.raw());
        for (std::size_t i = 0; i < buffers.size(); ++i) {
          if (data < buffers[i].data() || data >= buffers[i].data() + buffers[i].size()) continue;
          std::array<std::int64_t, kMaxRank> strides{};
          for (int d = 0; d < view.rank(); ++d) strides[static_cast<std::size_t>(d)] = view.stride(d);
          return TensorView(tensors[i].data<std::uint8_t>() + (data - buffers[i].data()), view.dtype(),
                            view.shape(), std::span(strides.data(), static_cast<std::size_t>(view.rank())));
        }
        return TensorView(nullptr, view.dtype(), view.shape());
      };
      context.run([&](const Stream& stream) {
        for (std::size_t i = 0; i < buffers.size(); ++i) {
          backend.copy(StreamId::main, tensors[i].view().raw(), buffers[i].data(), tensors[i].view().bytes());
        }
        body(moved, stream);
        for (std::size_t i = 0; i < buffers.size(); ++i) {
          backend.copy(StreamId::main, buffers[i].data(), tensors[i].view().raw(), tensors[i].view().bytes());
        }
      });
      context.synchronize();
    });
  };
  Context rehearsal(backend.description(), backend.device().index);
  program(rehearsal);
  Context context(backend, make_layout(std::move(rehearsal).take_ledger()));
  program(context);
}

Results run(const AttentionCase& c, const AttentionProblem& problem,
            const AttentionImplementation& implementation, const Inputs& inputs, DType results_dtype,
            const Stream& host, Backend* backend = nullptr) {
  const Shape rows = inputs.query.view().shape();
  const Shape keys = inputs.key.view().shape();
  const DType statistics_dtype = results_dtype == DType::f64 ? DType::f64 : DType::f32;
  const Guarded output(results_dtype, rows, c.strided, c.odd);
  const Guarded lse(statistics_dtype, {problem.batch, problem.heads_q, problem.seq_q}, false);
  const Guarded query_gradient(results_dtype, rows, c.strided, c.odd);
  const Guarded key_gradient(results_dtype, keys, c.strided, c.odd);
  const Guarded value_gradient(results_dtype, keys, c.strided, c.odd);
  const Guarded sinks_gradient(statistics_dtype, {problem.sinks ? problem.heads_q : 0}, false);

  const DeviceDescription& device = backend == nullptr ? *host.device : backend->description();
  const Scratch saved(implementation.saved_bytes(problem));
  const Scratch forward_workspace(implementation.workspace_bytes(problem, device, Pass::forward));
  const Scratch backward_workspace(implementation.workspace_bytes(problem, device, Pass::backward));

  AttentionForward forward{.query = inputs.query.view(),
                           .key = inputs.key.view(),
                           .value = inputs.value.view(),
                           .sinks = inputs.sinks.view(),
                           .document_starts = {},
                           .blocks = {},
                           .output = output.view(),
                           .lse = lse.view(),
                           .saved = saved.view()};
  const AttentionForward lists = inputs.lists.views(problem);
  forward.document_starts = lists.document_starts;
  forward.blocks = lists.blocks;
  const AttentionBackward backward{.forward = forward,
                                   .output_gradient = inputs.output_gradient.view(),
                                   .lse_gradient = inputs.lse_gradient.view(),
                                   .query_gradient = query_gradient.view(),
                                   .key_gradient = key_gradient.view(),
                                   .value_gradient = value_gradient.view(),
                                   .sinks_gradient = sinks_gradient.view()};
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
                                                 output.memory(),
                                                 lse.memory(),
                                                 query_gradient.memory(),
                                                 key_gradient.memory(),
                                                 value_gradient.memory(),
                                                 sinks_gradient.memory(),
                                                 saved.memory(),
                                                 forward_workspace.memory(),
                                                 backward_workspace.memory()};
    std::erase_if(buffers, [](const std::span<std::byte> buffer) { return buffer.empty(); });
    with_buffers(*backend, buffers, run_both);
  }

  Results results;
  results.canaries_alive =
      saved.canaries_alive() && forward_workspace.canaries_alive() && backward_workspace.canaries_alive();
  const std::array all = {&output, &lse, &query_gradient, &key_gradient, &value_gradient, &sinks_gradient};
  for (std::size_t i = 0; i < all.size(); ++i) {
    results.values[i] = all[i]->values();
    results.canaries_alive &= all[i]->canaries_alive();
  }
  return results;
}

}  // namespace

std::vector<AttentionCase> attention_cases() {
  CaseList list;
  add_sizes(list);
  add_head_dims(list);
  add_heads(list);
  add_documents(list);
  add_padded_documents(list);
  add_options(list);
  add_dilated(list);
  add_blocks(list);
  add_blocks_in_16_bits(list);
  add_larger_heads(list);
  return list.take();
}

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
    const Random random(7);
    for (std::int64_t i = 0; i < p.batch * p.heads_q * tiles; ++i) {
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
    forward.blocks = TensorView(const_cast<std::int32_t*>(blocks.data()), DType::i32,
                                {problem.batch, problem.heads_q, tiles, problem.mask.max_blocks_per_row});
  }
  return forward;
}

const AttentionImplementation& find_attention(std::string_view name) {
  for (const AttentionImplementation& row : attention_implementations()) {
    if (row.name == name) return row;
  }
  fail(ErrorKind::input, "implementation '{}' is unknown", name);
}

AttentionErrors run_attention_case(const AttentionCase& c, std::string_view implementation, int threads) {
  CaseDevice cpu{.description = describe_cpu()};
  cpu.description.cores = threads;
  return run_attention_case(c, find_attention(implementation), threads, cpu);
}

AttentionErrors run_attention_case(const AttentionCase& c, const AttentionImplementation& implementation,
                                   int threads, const CaseDevice& device) {
  DeviceDescription cpu = describe_cpu();
  cpu.cores = threads;
  ThreadPool pool(threads);
  const Stream stream{.device = &cpu, .pool = &pool, .poll = {}, .native = nullptr};
  const Stream our_stream{.device = &device.description, .pool = &pool, .poll = {}, .native = nullptr};
  const Inputs inputs = make_inputs(c);
  const Results truth = run(c, c.problem, find_attention("reference"), inputs, DType::f64, stream);
  const Results ours = run(c, c.problem, implementation, inputs, c.problem.dtype, our_stream, device.backend);
  // Plain: the naive computation, for a row that multiplies in tf32 from operands rounded to it. It mixes
  // patterns only with attached weights, and is as far from the truth there.
  const bool tf32 = implementation.name == "tf32";
  const Inputs rounded = tf32 ? in_tf32(make_inputs(c)) : Inputs{};
  AttentionProblem plain_problem = c.problem;
  plain_problem.mask.detach_mixing = false;
  const Results plain_truth =
      c.problem.mask.detach_mixing
          ? run(c, plain_problem, find_attention("reference"), inputs, DType::f64, stream)
          : truth;
  const Results plain =
      run(c, plain_problem, find_attention("naive"), tf32 ? rounded : inputs, c.problem.dtype, stream);

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
    const bool wide = (c.problem.dtype == DType::f32 && !tf32) || i == 1;
    const double unit = tf32 ? 0x1p-10 : unit_in_last_place(c.problem.dtype);
    const double floor = largest * (wide ? 0x1p-20 : unit);
    const double factor = i < 2 ? 2 : 3;
    const double plain_error = largest_difference(plain_truth.values[i], plain.values[i]);
    errors.ours[i] = largest_difference(truth.values[i], ours.values[i]);
    errors.allowed[i] = std::isfinite(plain_error) ? std::max(factor * plain_error, floor) : floor;
  }
  return errors;
}

Support serves(const AttentionCase& c, std::string_view implementation) {
  return serves(c, implementation, describe_cpu());
}

Support serves(const AttentionCase& c, std::string_view implementation, const DeviceDescription& device) {
  return find_attention(implementation).supports(c.problem, device);
}

}  // namespace headroom
