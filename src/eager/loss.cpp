#include "eager/loss.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "headroom/core/bytes.h"
#include "headroom/core/checked.h"

namespace headroom {

namespace {

constexpr std::int64_t kMaxChunksKept = 1024;

}  // namespace

std::int64_t most_eager_tokens(const EagerOptions& options) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (options.loss != EagerLoss::chunked || options.loss_chunk > kMost / kMaxChunksKept) return kMost;
  return kMaxChunksKept * options.loss_chunk;
}

EagerLossProgram::EagerLossProgram(EagerProgram& program, const EagerLossProblem& problem,
                                   const EagerOptions& options)
    : program_(program), problem_(problem), options_(options), last_tokens_(problem.tokens) {
  if (options.loss == EagerLoss::full) return;
  check(options.loss_chunk >= 1, "the loss takes {} tokens at a time; at least 1 is accepted",
        options.loss_chunk);
  const std::int64_t chunks = divide_up(problem.tokens, options.loss_chunk);
  check(problem.tokens <= most_eager_tokens(options),
        "a loss that keeps its chunks has {} of {} tokens; at most {} chunks can be planned",
        format_count(chunks), format_count(options.loss_chunk), format_count(kMaxChunksKept));
  chunks_ = options.loss == EagerLoss::chunked ? chunks : std::min(chunks, options.chunks_played);
  last_tokens_ = problem.tokens - (chunks - 1) * options.loss_chunk;
}

std::int64_t EagerLossProgram::tokens_of(std::int64_t chunk) const {
  return chunk + 1 == chunks_ ? last_tokens_ : options_.loss_chunk;
}

Tensor EagerLossProgram::log_probabilities(std::int64_t tokens) {
  program_.product_in_forward();
  Tensor result = logits("hidden @ weight^T", options_.dtype, tokens);
  if (options_.upcast_logits && options_.dtype != DType::f32) {
    result = logits("logits.float()", DType::f32, tokens);  // which the name logits stands for from now on
  }
  return logits("log_softmax", result.view().dtype(), tokens);
}

Tensor EagerLossProgram::logits_gradient(Tensor log_probabilities, std::int64_t tokens) const {
  const DType dtype = log_probabilities.view().dtype();
  Tensor picked = logits("nll_loss gradient", dtype, tokens);
  Tensor gradient = logits("log_softmax gradient", dtype, tokens);
  drop(picked, log_probabilities);
  if (dtype == options_.dtype) return gradient;
  return logits("grad.to(dtype)", options_.dtype, tokens);
}

void EagerLossProgram::forward() {
  saved_.resize(static_cast<std::size_t>(chunks_));
  for (std::int64_t chunk = 0; chunk < chunks_; ++chunk) {
    if (options_.loss == EagerLoss::chunked_compiled) {
      // One kernel reads the 16-bit logits and leaves a row's maximum and sum.
      program_.product_in_forward();
      (void)logits("hidden @ weight^T", options_.dtype, tokens_of(chunk));
      continue;
    }
    Tensor made = log_probabilities(tokens_of(chunk));
    // checkpoint() keeps the chunk of hidden states, a view, and nothing else.
    if (options_.loss != EagerLoss::chunked_recompute)
      saved_[static_cast<std::size_t>(chunk)] = std::move(made);
  }
}

// The first two gradients of the weight meet in a new tensor, since a product's result seen transposed is a
// view; a compiled product's is none. Later ones are added in place.
void EagerLossProgram::add_weight_gradient(Tensor fresh) {
  if (weight_gradient_.view().elements() == 0) {
    weight_gradient_ = std::move(fresh);
    return;
  }
  if (weight_gradient_summed_ || options_.loss == EagerLoss::chunked_compiled) return;
  weight_gradient_ = program_.make("weight gradient", Category::gradients, options_.dtype,
                                   {problem_.vocab, problem_.hidden});
  weight_gradient_summed_ = true;
}

void EagerLossProgram::backward_chunk(std::int64_t chunk) {
  const std::int64_t tokens = tokens_of(chunk);
  Tensor gradient;
  if (options_.loss == EagerLoss::chunked_compiled) {
    // Made again; their gradient overwrites them.
    program_.product_in_backward();
    gradient = logits("hidden @ weight^T", options_.dtype, tokens);
  } else {
    Tensor log_probability = options_.loss == EagerLoss::chunked_recompute
                                 ? log_probabilities(tokens)
                                 : std::move(saved_[static_cast<std::size_t>(chunk)]);
    gradient = logits_gradient(std::move(log_probability), tokens);
  }
  program_.product_in_backward();
  Tensor weight_gradient = program_.make("weight gradient of a chunk", Category::gradients, options_.dtype,
                                         {problem_.vocab, problem_.hidden});
  Tensor hidden_gradient = program_.make("hidden gradient of a chunk", Category::activations, options_.dtype,
                                         {tokens, problem_.hidden});
  drop(gradient);
  add_weight_gradient(std::move(weight_gradient));
  drop(weight_gradient);
  if (options_.loss == EagerLoss::full) {
    hidden_gradient_ = std::move(hidden_gradient);
    return;
  }
  // A slice's gradient is as large as what was sliced, zero elsewhere; from the second on it is added in
  // place.
  Tensor whole = program_.make("hidden gradient", Category::activations, options_.dtype,
                               {problem_.tokens, problem_.hidden});
  drop(hidden_gradient);
  if (hidden_gradient_.view().elements() == 0) hidden_gradient_ = std::move(whole);
}

Tensor EagerLossProgram::backward() {
  for (std::int64_t chunk = chunks_ - 1; chunk >= 0; --chunk) backward_chunk(chunk);
  return std::move(hidden_gradient_);
}

Ledger rehearse_eager_loss(const EagerLossProblem& problem, const EagerOptions& options,
                           const DeviceDescription& device) {
  check(problem.tokens >= 1 && problem.hidden >= 1 && problem.vocab >= 1,
        "a loss of {} tokens, hidden {} and vocabulary {} is empty", problem.tokens, problem.hidden,
        problem.vocab);
  Context context(device);
  context.phase(Phase::step, [&] {
    EagerProgram program(context);
    Tensor hidden, weight, labels;
    {
      const auto stage = context.stage(StageKind::inputs);
      hidden = program.make("hidden states", Category::activations, options.dtype,
                            {problem.tokens, problem.hidden});
      weight = program.make("weight", Category::parameters, options.dtype, {problem.vocab, problem.hidden});
      labels = program.integers("labels", problem.tokens);
      program.product_in_forward();  // a benchmark's first round takes the workspaces, and they stay
      program.product_in_backward();
    }
    EagerLossProgram loss(program, problem, options);
    {
      const auto stage = context.stage(StageKind::forward);
      loss.forward();
    }
    const auto stage = context.stage(StageKind::backward);
    const Tensor gradient = loss.backward();
  });
  return std::move(context).take_ledger();
}

}  // namespace headroom
