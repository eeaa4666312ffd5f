#include "loss_cases.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "device_buffers.h"
#include "headroom/cpu.h"

namespace headroom {
namespace {

// ---- the list

constexpr std::array kDTypes = {DType::f32, DType::bf16, DType::f16};
constexpr std::array kReductions = {Reduction::mean, Reduction::sum, Reduction::none};

std::string_view name(Reduction reduction) {
  return reduction == Reduction::mean ? "mean" : reduction == Reduction::sum ? "sum" : "none";
}

std::string describe(const LossCase& c) {
  const LossProblem& p = c.problem;
  std::string text =
      fmt::format("{} {}x{}x{} {}", headroom::name(p.dtype), p.tokens, p.hidden, p.vocab, name(p.reduction));
  if (p.ignore_index != LossProblem{}.ignore_index) text += fmt::format(" ignore {}", p.ignore_index);
  if (c.ignored > 0) text += fmt::format(" {:.0f}% ignored", 100 * c.ignored);
  if (p.shift) text += fmt::format(" shift {}", p.sequence_tokens);
  if (p.label_smoothing != 0) text += " smoothing";
  if (p.z_loss != 0) text += " z-loss";
  if (p.softcap != 0) text += " softcap";
  if (p.token_weights) text += " weights";
  if (p.chunk_tokens != 0) text += fmt::format(" {} tokens a chunk", p.chunk_tokens);
  if (p.chunk_vocab != 0) text += fmt::format(" {} words a chunk", p.chunk_vocab);
  return text;
}

class CaseList {
 public:
  void add(const std::string& group, const LossProblem& problem, double ignored = 0, float spread = 1) {
    LossCase added{.group = group, .name = {}, .problem = problem, .ignored = ignored, .spread = spread};
    added.name = describe(added);
    cases_.push_back(std::move(added));
  }
  std::vector<LossCase> take() { return std::move(cases_); }

 private:
  std::vector<LossCase> cases_;
};

LossProblem sized(std::int64_t tokens, std::int64_t hidden, std::int64_t vocab, DType dtype) {
  return {.tokens = tokens, .hidden = hidden, .vocab = vocab, .dtype = dtype};
}

void add_sizes(CaseList& list) {
  const std::array<std::int64_t, 6> tokens = {1, 5, 33, 97, 130, 61};
  std::size_t next = 0;
  for (const std::int64_t vocab : {1, 2, 17, 509, 1733}) {
    for (const std::int64_t hidden : {1, 8, 40, 130}) {
      // Two different numbers of tokens and dtypes for every pair; large products get few tokens.
      for (int i = 0; i < 2; ++i, ++next) {
        const std::int64_t most = std::max<std::int64_t>(5'000'000 / (vocab * hidden), 1);
        LossProblem problem =
            sized(std::min(tokens[next % tokens.size()], most), hidden, vocab, kDTypes[next % 3]);
        problem.reduction = kReductions[next / 3 % 3];
        list.add("sizes", problem);
      }
    }
  }
  list.add("sizes", sized(0, 8, 17, DType::f32));
  list.add("sizes", sized(1000, 8, 600, DType::f32));
  list.add("sizes", sized(1000, 8, 600, DType::bf16));
}

void add_options(CaseList& list) {
  for (const DType dtype : kDTypes) {
    const LossProblem plain = sized(67, 40, 509, dtype);
    const auto with = [&](double ignored, const auto& change) {
      LossProblem problem = plain;
      change(problem);
      list.add("options", problem, ignored);
    };
    for (const Reduction reduction : kReductions) {
      with(0, [&](LossProblem& p) { p.reduction = reduction; });
      with(0.3, [&](LossProblem& p) { p.reduction = reduction; });
      with(1, [&](LossProblem& p) { p.reduction = reduction; });
    }
    with(0.3, [](LossProblem& p) { p.ignore_index = -1; });
    with(0.3, [](LossProblem& p) { p.ignore_index = 7; });
    with(0, [](LossProblem& p) { p.shift = true; });
    with(0.2, [](LossProblem& p) {
      p.tokens = 66;
      p.shift = true;
      p.sequence_tokens = 11;
    });
    with(0, [](LossProblem& p) { p.shift = true, p.sequence_tokens = 1; });
    with(0, [](LossProblem& p) { p.label_smoothing = 0.1F; });
    with(0, [](LossProblem& p) { p.z_loss = 1e-2F; });
    with(0, [](LossProblem& p) { p.softcap = 2; });
    with(0, [](LossProblem& p) { p.token_weights = true; });
  }
}

LossProblem with_everything(LossProblem problem, Reduction reduction) {
  problem.reduction = reduction;
  problem.ignore_index = 3;
  problem.shift = true;
  problem.sequence_tokens = problem.tokens / 3;
  problem.label_smoothing = 0.2F;
  problem.z_loss = 1e-3F;
  problem.softcap = 3;
  problem.token_weights = true;
  return problem;
}

void add_chunks(CaseList& list) {
  for (const DType dtype : kDTypes) {
    for (const Reduction reduction : kReductions) {
      LossProblem problem = with_everything(sized(105, 8, 1733, dtype), reduction);
      list.add("together", problem, 0.2);
      problem.chunk_tokens = 33;
      problem.chunk_vocab = 600;
      list.add("together", problem, 0.2);
    }
  }
  const std::array<std::array<std::int64_t, 2>, 11> chunks = {{{1, 0},
                                                               {33, 0},
                                                               {96, 0},
                                                               {5000, 0},
                                                               {0, 1},
                                                               {0, 33},
                                                               {0, 96},
                                                               {0, 1'000'000},
                                                               {1, 1},
                                                               {33, 1024},
                                                               {96, 96}}};
  std::size_t next = 0;
  for (const auto& [tokens, words] : chunks) {
    for (int i = 0; i < 2; ++i, ++next) {
      LossProblem problem = sized(131, 24, 1733, kDTypes[next % 3]);
      problem.chunk_tokens = tokens;
      problem.chunk_vocab = words;
      problem.softcap = next % 2 == 0 ? 5.0F : 0.0F;
      list.add("chunks", problem, 0.1);
    }
  }
  // Whole chunks in which nothing counts.
  LossProblem sparse = sized(300, 8, 700, DType::bf16);
  sparse.chunk_tokens = 3;
  list.add("chunks", sparse, 0.9);
  // Depths of the last product that pack more columns than those of the others.
  LossProblem uneven = sized(3, 1100, 9216, DType::bf16);
  uneven.chunk_vocab = 5120;
  list.add("chunks", uneven);
}

void add_large_logits(CaseList& list) {
  for (const DType dtype : kDTypes) {
    for (const Reduction reduction : {Reduction::mean, Reduction::none}) {
      LossProblem problem = sized(90, 40, 1100, dtype);
      problem.reduction = reduction;
      list.add("logits of thousands", problem, 0, 2000);
      problem.label_smoothing = 0.1F;
      problem.z_loss = 1e-6F;
      problem.chunk_vocab = 512;
      list.add("logits of thousands", problem, 0.1, 2000);
      problem.softcap = 50;
      list.add("logits of thousands", problem, 0, 2000);
    }
  }
}

// ---- running one

std::int64_t losses(const LossProblem& problem) {
  return problem.reduction == Reduction::none ? problem.tokens : 1;
}

std::vector<float> in_f32(const Guarded& tensor) {
  const std::vector<double> values = tensor.values();
  return {values.begin(), values.end()};
}

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

// The root of the sum of the squares of the differences: about what independent errors of these sizes come to
// when they are added.
double root_of_squares(const std::vector<double>& a, const std::vector<double>& b) {
  return std::sqrt(std::transform_reduce(a.begin(), a.end(), b.begin(), 0.0, std::plus<>(),
                                         [](double x, double y) { return (x - y) * (x - y); }));
}

}  // namespace

const LossImplementation& find_loss(std::string_view name) {
  for (const LossImplementation& row : loss_implementations()) {
    if (row.name == name) return row;
  }
  fail(ErrorKind::input, "implementation '{}' is unknown", name);
}

std::vector<LossCase> loss_cases() {
  CaseList list;
  add_sizes(list);
  add_options(list);
  add_chunks(list);
  add_large_logits(list);
  return list.take();
}

PreparedLossCase::PreparedLossCase(LossCase c) : case_(std::move(c)) {
  make_inputs();
  truth_ = run(case_.problem, "reference", describe_cpu(), true, nullptr);
  plain_ = compute_plainly(DType::f32);
}

void PreparedLossCase::make_inputs() {
  const LossProblem& p = case_.problem;
  hidden_ = Guarded(p.dtype, {p.tokens, p.hidden}, false);
  hidden_.fill_normal(Random(1), 1);
  weight_ = Guarded(p.dtype, {p.vocab, p.hidden}, false);
  weight_.fill_normal(Random(2), case_.spread / std::sqrt(static_cast<float>(p.hidden)));
  loss_gradient_ = Guarded(DType::f32, {losses(p)}, false);
  loss_gradient_.fill_normal(Random(3), 1);
  // Of the size of what is added, so that its rounding does not hide that of the sum.
  old_weight_gradient_ = Guarded(DType::f32, {p.vocab, p.hidden}, false);
  const bool mean = p.reduction == Reduction::mean;
  old_weight_gradient_.fill_normal(
      Random(4), mean ? 0.3F / static_cast<float>(std::max<std::int64_t>(p.tokens, 1)) : 0.3F);
  const Random random(5);
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    const auto index = static_cast<std::uint64_t>(t);
    const bool ignored = random.uniform(2 * index) < case_.ignored;
    const auto label = random.below(2 * index + 1, static_cast<std::uint64_t>(p.vocab));
    labels_.push_back(ignored ? p.ignore_index : static_cast<std::int32_t>(label));
  }
  if (!p.token_weights) return;
  token_weights_ = Guarded(DType::f32, {p.tokens}, false);
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    write_element(token_weights_.view(), t,
                  t % 4 == 1 ? 0 : 2 * Random(6).uniform(static_cast<std::uint64_t>(t)));
  }
}

LossResults PreparedLossCase::run(const LossProblem& problem, std::string_view implementation,
                                  const DeviceDescription& device, bool in_double, Backend* backend) const {
  const LossImplementation& row = find_loss(implementation);
  const DType wide = in_double ? DType::f64 : DType::f32;
  const Guarded forward_loss(wide, {losses(problem)}, false);
  const Guarded loss(wide, {losses(problem)}, false);
  const Guarded hidden_gradient(in_double ? DType::f64 : problem.dtype, {problem.tokens, problem.hidden},
                                false);
  const Guarded weight_gradient(wide, {problem.vocab, problem.hidden}, false);
  for (std::int64_t i = 0; i < weight_gradient.view().elements(); ++i) {
    write_element(weight_gradient.view(), i, read_element(old_weight_gradient_.view(), i));
  }
  const Scratch saved(row.saved_bytes(problem));
  const Scratch forward_workspace(row.workspace_bytes(problem, device, Pass::forward));
  const Scratch backward_workspace(row.workspace_bytes(problem, device, Pass::backward));
  const TensorView labels(const_cast<std::int32_t*>(labels_.data()), DType::i32, {problem.tokens});
  const auto run_both = [&](const auto& moved, const Stream& stream) {
    LossForward forward{.hidden = moved(hidden_.view()),
                        .weight = moved(weight_.view()),
                        .labels = moved(labels),
                        .token_weights = moved(token_weights_.view()),
                        .loss = moved(forward_loss.view()),
                        .saved = moved(saved.view())};
    row.forward(problem, forward, moved(forward_workspace.view()), stream);
    forward.loss = moved(loss.view());
    row.backward(problem,
                 {.forward = forward,
                  .loss_gradient = moved(loss_gradient_.view()),
                  .hidden_gradient = moved(hidden_gradient.view()),
                  .weight_gradient = moved(weight_gradient.view())},
                 moved(backward_workspace.view()), stream);
  };
  if (backend == nullptr) {
    ThreadPool pool(device.cores);
    run_both([](const TensorView& view) { return view; },
             Stream{.device = &device, .pool = &pool, .poll = {}, .native = nullptr});
  } else {
    std::vector<std::span<std::byte>> buffers = {
        hidden_.memory(),
        weight_.memory(),
        token_weights_.memory(),
        loss_gradient_.memory(),
        std::as_writable_bytes(std::span(const_cast<std::vector<std::int32_t>&>(labels_))),
        forward_loss.memory(),
        loss.memory(),
        hidden_gradient.memory(),
        weight_gradient.memory(),
        saved.memory(),
        forward_workspace.memory(),
        backward_workspace.memory()};
    std::erase_if(buffers, [](const std::span<std::byte> buffer) { return buffer.empty(); });
    with_buffers(*backend, buffers, run_both);
  }
  LossResults results{.values = {loss.values(), hidden_gradient.values(), weight_gradient.values()},
                      .forward_agrees = forward_loss.values() == loss.values(),
                      .canaries_alive = true};
  for (const Scratch* scratch : {&saved, &forward_workspace, &backward_workspace})
    results.canaries_alive &= scratch->canaries_alive();
  for (const Guarded* tensor : {&forward_loss, &loss, &hidden_gradient, &weight_gradient})
    results.canaries_alive &= tensor->canaries_alive();
  return results;
}

LossResults PreparedLossCase::run(const LossProblem& problem, std::string_view implementation,
                                  const DeviceDescription& device) const {
  return run(problem, implementation, device, false, nullptr);
}

// The formulas in f32, as one would write them who has memory enough; only that the largest logit is
// subtracted. Logits and their gradients are rounded to a dtype.
LossResults PreparedLossCase::compute_plainly(DType logits) const {
  const LossProblem& p = case_.problem;
  const std::vector<float> x = in_f32(hidden_);
  const std::vector<float> w = in_f32(weight_);
  const std::vector<float> upstream = in_f32(loss_gradient_);
  std::vector<float> weights(at(p.tokens), 1);
  if (p.token_weights) weights = in_f32(token_weights_);
  std::vector<std::int64_t> labels(at(p.tokens), -1);
  float counted = 0;
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    const std::int64_t length = p.sequence_tokens == 0 ? p.tokens : p.sequence_tokens;
    const bool last = p.shift && t % length == length - 1;
    const std::int32_t label = last ? p.ignore_index : labels_[at(p.shift ? t + 1 : t)];
    if (label == p.ignore_index) continue;
    labels[at(t)] = label;
    counted += weights[at(t)];
  }
  const float divisor = p.reduction != Reduction::mean || counted == 0 ? 1 : counted;

  std::vector<float> loss(at(losses(p)));
  std::vector<double> token_losses(at(p.tokens));
  std::vector<float> hidden_gradient(x.size());
  std::vector<float> weight_gradient = in_f32(old_weight_gradient_);
  std::vector<float> z(at(p.vocab));
  const float words = static_cast<float>(p.vocab);
  const auto rounded_logit = [&](float value) {
    if (logits == DType::bf16) return static_cast<float>(BFloat16(value));
    return logits == DType::f16 ? static_cast<float>(Float16(value)) : value;
  };
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    if (labels[at(t)] < 0) continue;
    const float weight = weights[at(t)] / divisor;
    for (std::int64_t v = 0; v < p.vocab; ++v) {
      float dot = 0;
      for (std::int64_t i = 0; i < p.hidden; ++i) dot += x[at(t * p.hidden + i)] * w[at(v * p.hidden + i)];
      dot = rounded_logit(dot);
      z[at(v)] = p.softcap == 0 ? dot : p.softcap * std::tanh(dot / p.softcap);
    }
    const float max = *std::ranges::max_element(z);
    float sum = 0;
    float mean = 0;
    for (const float logit : z) {
      sum += std::exp(logit - max);
      mean += logit;
    }
    mean /= words;
    const float lse = max + std::log(sum);
    const float target = z[at(labels[at(t)])];
    const float one =
        (1 - p.label_smoothing) * (lse - target) + p.label_smoothing * (lse - mean) + p.z_loss * lse * lse;
    const std::size_t slot = p.reduction == Reduction::none ? at(t) : 0;
    loss[slot] += weight * one;
    token_losses[at(t)] = static_cast<double>(weight * one);
    const float scale = weight * upstream[slot];
    for (std::int64_t v = 0; v < p.vocab; ++v) {
      float dz = (1 + 2 * p.z_loss * lse) * std::exp(z[at(v)] - max) / sum - p.label_smoothing / words;
      if (v == labels[at(t)]) dz -= 1 - p.label_smoothing;
      if (p.softcap != 0) dz *= 1 - z[at(v)] / p.softcap * (z[at(v)] / p.softcap);
      dz = rounded_logit(dz * scale);
      for (std::int64_t i = 0; i < p.hidden; ++i) {
        hidden_gradient[at(t * p.hidden + i)] += dz * w[at(v * p.hidden + i)];
        weight_gradient[at(v * p.hidden + i)] += dz * x[at(t * p.hidden + i)];
      }
    }
  }
  const Guarded rounded(p.dtype, {p.tokens, p.hidden}, false);
  for (std::int64_t i = 0; i < p.tokens * p.hidden; ++i) {
    write_element(rounded.view(), i, hidden_gradient[at(i)]);
  }
  return {.values = {std::vector<double>(loss.begin(), loss.end()), rounded.values(),
                     std::vector<double>(weight_gradient.begin(), weight_gradient.end())},
          .token_losses = std::move(token_losses)};
}

LossErrors PreparedLossCase::judge(std::string_view implementation, const DeviceDescription& device,
                                   Backend* backend) const {
  const LossResults ours = run(case_.problem, implementation, device, false, backend);
  LossErrors errors;
  errors.canaries_alive = ours.canaries_alive;
  // GPUs hold logits in the problem's dtype, as everybody's do.
  const bool narrow = device.kind == DeviceKind::cuda && case_.problem.dtype != DType::f32;
  const LossResults plainly = narrow ? compute_plainly(case_.problem.dtype) : plain_;
  for (std::size_t i = 0; i < kLossResults; ++i) {
    const double largest = largest_magnitude(truth_.values[i]);
    // A few results are exact in the plain computation: two units of f32 in the last place of the largest
    // value, or half of one of a 16-bit type, are always allowed.
    const bool wide = case_.problem.dtype == DType::f32 || i != 1;
    const double floor = largest * (wide ? 0x1p-22 : unit_in_last_place(case_.problem.dtype) / 2);
    const double factor = i == 0 ? 2 : 3;
    double plain = largest_difference(truth_.values[i], plainly.values[i]);
    // The errors of many tokens may cancel by luck in the one number of a mean or a sum.
    if (i == 0 && narrow && case_.problem.reduction != Reduction::none) {
      plain = std::max(plain, root_of_squares(plain_.token_losses, plainly.token_losses));
    }
    // Two independent derivations: had they little in common, the plain one would allow anything.
    const double unit = unit_in_last_place(case_.problem.dtype);
    const bool agree = plain <= largest * (wide && !narrow ? 0x1p-9 : 4 * unit);
    errors.allowed[i] = agree ? std::max(factor * plain, floor) : 0;
    errors.ours[i] = largest_difference(truth_.values[i], ours.values[i]);
    if (!agree) errors.ours[i] = std::numeric_limits<double>::infinity();
  }
  if (!ours.forward_agrees) errors.ours[0] = std::numeric_limits<double>::infinity();
  return errors;
}

double LossErrors::worst() const {
  if (!canaries_alive) return std::numeric_limits<double>::infinity();
  return largest_ratio(ours, allowed);
}

Support serves(const LossCase& c, std::string_view implementation) {
  return serves(c, implementation, describe_cpu());
}

Support serves(const LossCase& c, std::string_view implementation, const DeviceDescription& device) {
  if (device.kind == DeviceKind::cuda && c.spread > 1 && c.problem.dtype != DType::f32) {
    return Support::no("holds logits in 16 bits: of thousands, rounding alone decides which is the largest");
  }
  return find_loss(implementation).supports(c.problem, device);
}

}  // namespace headroom
