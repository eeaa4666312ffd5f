// What a step takes in eager PyTorch: a second step program, written as autograd keeps and frees tensors, on
// the same phantom device; its ledger is fed to the model of PyTorch's caching allocator. Nothing here runs a
// kernel. Every program follows PyTorch 2.11 (and transformers' Qwen3 / Llama modules) operator by operator.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headroom/core/device.h"
#include "headroom/core/dtype.h"
#include "headroom/memory/ledger.h"
#include "headroom/memory/usage.h"
#include "headroom/model/config.h"
#include "headroom/model/decoder.h"

namespace headroom {

enum class EagerAttention : std::uint8_t {
  sdpa,   // scaled_dot_product_attention: cuDNN for 16-bit types, the memory-efficient kernel for f32; the
          // naive form where query heads share key heads in f32, which no fused kernel takes
  naive,  // scores, mask, softmax and product, each a tensor of its own
};

enum class EagerLoss : std::uint8_t {
  full,               // logits of all tokens at once
  chunked,            // logits of a chunk at once; every chunk's log-probabilities stay for backward
  chunked_recompute,  // each chunk under checkpoint(): made again in backward
  chunked_compiled,   // the same with the chunk's function compiled: no f32 copy of the logits
};

struct EagerOptions {
  EagerAttention attention = EagerAttention::sdpa;
  EagerLoss loss = EagerLoss::chunked_recompute;
  std::int64_t loss_chunk = 4096;  // tokens
  // Chunks that keep nothing leave the allocator as they found it, from the third on at the latest: at most
  // so many are played.
  std::int64_t chunks_played = 8;
  bool upcast_logits = true;      // logits.float() before cross_entropy, as transformers does
  bool checkpoint_layers = true;  // torch.utils.checkpoint around every layer, use_reentrant=False
  bool adamw = false;             // torch.optim.AdamW, foreach; two steps: the state comes with the first
  DType dtype = DType::bf16;      // of activations, and of what `state` says
  // With a 16-bit dtype, bf16: parameters, gradients and optimizer state are of that dtype. f32: they are
  // f32, and torch.autocast makes copies of the matrices in the dtype. 8bit: as bf16 with moments of 8 bits,
  // as bitsandbytes keeps them.
  StatePrecision state = StatePrecision::bf16;
  bool made_in_f32 = false;  // the model was made in f32 on the device, then converted with .to(dtype)

  [[nodiscard]] bool autocast() const { return state == StatePrecision::f32 && dtype != DType::f32; }
  [[nodiscard]] DType parameter_dtype() const { return autocast() ? DType::f32 : dtype; }
};

// The most tokens that a step may have: a loss that keeps its chunks has at most 1,024 of them.
[[nodiscard]] std::int64_t most_eager_tokens(const EagerOptions& options);

// One training step (two with an optimizer) of a decoder of at most 256 layers: one phase, stages
// load, forward, loss, backward, optimizer.
[[nodiscard]] Ledger rehearse_eager(const ModelConfig& config, const StepSizes& sizes,
                                    const EagerOptions& options, const DeviceDescription& device);

// The loss alone, hidden states and weight given: what the loss adds to a step.
struct EagerLossProblem {
  std::int64_t tokens = 0;
  std::int64_t hidden = 0;
  std::int64_t vocab = 0;
};
[[nodiscard]] Ledger rehearse_eager_loss(const EagerLossProblem& problem, const EagerOptions& options,
                                         const DeviceDescription& device);

// The attention benchmark: forward and backward of one attention, over and over, of which the first two steps
// are rehearsed. Stages: inputs, step 0/forward, step 0/backward, step 1/forward, ...
struct EagerAttentionBenchmark {
  enum class Form : std::uint8_t {
    written_out,  // loss = attention(q, k, v).sum(), softmax from max, exp and sum; gradients are never
                  // cleared
    softmax,  // out = ..., torch.softmax; out.sum().backward(); gradients are set to None before every step
    sdpa,     // the same with scaled_dot_product_attention
  };
  Form form = Form::written_out;
  std::int64_t batch = 8;
  std::int64_t seq = 0;
  std::int64_t head_dim = 0;
  DType dtype = DType::f32;
};
[[nodiscard]] Ledger rehearse_attention_benchmark(const EagerAttentionBenchmark& benchmark,
                                                  const DeviceDescription& device);

// A ring-attention rank's chunk function with online softmax, line by line: a stage for each.
struct RingSoftmax {
  enum class Variant : std::uint8_t {
    as_written,  // torch.exp(scores - new_max), twice
    in_place,    // scores.sub_(new_max).exp_(), once
    chunked,     // as written, over a few columns of the scores at a time
  };
  Variant variant = Variant::as_written;
  std::int64_t batch = 1;
  std::int64_t heads = 8;
  std::int64_t seq_q = 8192;
  std::int64_t seq_k = 8192;
  std::int64_t head_dim = 64;
  std::int64_t chunk = 2048;  // columns, for the chunked variant
  DType dtype = DType::f16;
};
[[nodiscard]] Ledger rehearse_ring_softmax(const RingSoftmax& ring, const DeviceDescription& device);
// The line's text.
[[nodiscard]] std::string_view ring_softmax_line(const StagePath& path);

// The request that the device could not serve.
struct EagerFailure {
  std::string block;  // its name
  StagePath path;     // where it was asked for
  std::string stage;  // the same in words
  std::int64_t bytes = 0;
  std::int64_t allocated_bytes = 0;  // alive at that moment
};

struct EagerMemory {
  std::int64_t live_peak_bytes = 0;  // torch.cuda.max_memory_allocated()
  std::int64_t reserved_bytes = 0;   // torch.cuda.max_memory_reserved()
  std::vector<StageUsage> stages;
  std::optional<EagerFailure> failure;  // where a capacity was given and did not suffice

  // Throws where the program has no such stage.
  [[nodiscard]] const StageUsage& stage(const StagePath& path) const;
};

// Live and reserved of a program under the caching allocator; a capacity of 0 is without limit.
[[nodiscard]] EagerMemory eager_memory(const Ledger& ledger, std::int64_t capacity_bytes = 0);

// The largest n for which program(n) fits the capacity and program(n + 1) does not, by doubling from `start`
// and bisection over rehearsals; 0 where not even 1 fits, `limit` where that still fits.
[[nodiscard]] std::int64_t largest_context(std::int64_t capacity_bytes, std::int64_t limit,
                                           const std::function<Ledger(std::int64_t)>& program,
                                           std::int64_t start = 1);

// What `headroom plan` answers about a step.
struct EagerQuestion {
  std::string model;  // its name, which the answer repeats
  ModelConfig config;
  StepSizes sizes;
  EagerOptions options;
  DeviceDescription device;
  std::int64_t budget_bytes = 0;
};
struct EagerAnswer {
  EagerQuestion question;
  EagerMemory memory{};                   // without a limit; of the stages the whole ones and the first layer
  CategoryBytes at_peak{};                // of it
  std::optional<EagerFailure> failure{};  // inside the budget
  std::int64_t max_context = 0;           // tokens that fit
  bool longer_may_fit = false;            // nothing longer than max_context was looked at
};
[[nodiscard]] EagerAnswer answer_eager(EagerQuestion question);

struct RingAnswer {
  struct Row {
    std::string_view variant;
    EagerMemory memory;                   // without a limit
    std::optional<EagerFailure> failure;  // inside the budget
  };
  RingSoftmax ring;
  std::int64_t budget_bytes = 0;
  std::vector<Row> rows;  // one for each variant
};
[[nodiscard]] RingAnswer answer_ring_softmax(RingSoftmax ring, const DeviceDescription& device,
                                             std::int64_t budget_bytes);

// The keys are in docs/cli.md.
[[nodiscard]] std::string json(const EagerAnswer& answer);
[[nodiscard]] std::string json(const RingAnswer& answer);

// In words.
[[nodiscard]] std::string describe(const EagerFailure& failure);
[[nodiscard]] std::string describe(const EagerOptions& options);

}  // namespace headroom
