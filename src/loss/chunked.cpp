// The loss in chunks of tokens, and of the vocabulary where even a chunk's logits are too many.
//
//   Z <- W X^T, capped, transposed; statistics over fixed blocks of words, merged in order, so that the
//   bits do not depend on the chunks; dZ <- factor * e^(Z - max) - smoothing, less the label's share;
//   dX <- dZ^T W; dW <- dW + dZ X
// Every row of the family but the reference is a setting of this.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/pieces.h"
#include "headroom/cpu/thread_pool.h"
#include "loss/chunk_logits.h"
#include "loss/implementations.h"

namespace headroom {

namespace {

constexpr std::int64_t kBlockRows = ChunkLogits::kBlockRows;
constexpr std::int64_t kLeastTokens = 96;   // a tile of the product
constexpr std::int64_t kSeedTokens = 4096;  // of the loop that people write
constexpr std::int64_t kOwnLogitsBytes = 224LL
                                         << 20;  // fused, where nobody says: 384 tokens of 151,936 words

// What was asked for, with what is left open filled in.
LossChunks resolve(const LossProblem& problem, std::int64_t own_tokens) {
  const std::int64_t tokens = problem.chunk_tokens == 0 ? own_tokens : problem.chunk_tokens;
  LossChunks chunks{.tokens = std::clamp<std::int64_t>(tokens, 1, std::max<std::int64_t>(problem.tokens, 1)),
                    .vocab = problem.vocab};
  if (problem.chunk_vocab > 0) {
    chunks.vocab = std::min(problem.vocab, round_up(problem.chunk_vocab, kBlockRows));
  }
  return chunks;
}

std::int64_t own_tokens(const LossProblem& problem) {
  const std::int64_t words = problem.chunk_vocab == 0 ? problem.vocab : problem.chunk_vocab;
  return std::max(kOwnLogitsBytes / 4 / words / kLeastTokens * kLeastTokens, kLeastTokens);
}

struct LossPieces {
  LossPieces(const LossProblem& problem, const LossChunks& chunks, bool logits_elsewhere, Pass pass,
             const DeviceDescription& device, std::byte* base) {
    Pieces pieces(base);
    const std::int64_t stride = ChunkLogits::stride_of(chunks.tokens);
    logits = pieces.take<float>(logits_elsewhere ? 0 : chunks.vocab * stride);
    partial = pieces.take<float>(ChunkLogits::partial_floats(chunks.vocab, stride));
    max = pieces.take<float>(stride);
    sum = pieces.take<float>(stride);
    logit_sum = pieces.take<float>(stride);
    target = pieces.take<float>(stride);
    factor = pieces.take<float>(stride);
    smoothing = pieces.take<float>(stride);
    std::int64_t product = product_workspace_bytes(chunks.tokens, problem.hidden, device);
    if (pass == Pass::backward) {
      if (problem.dtype != DType::f32) hidden_gradient = pieces.take<float>(chunks.tokens * problem.hidden);
      product = std::max({product, product_workspace_bytes(problem.hidden, chunks.vocab, device),
                          product_workspace_bytes(problem.hidden, chunks.tokens, device)});
    }
    product_workspace = TensorView(pieces.take<std::byte>(product), DType::u8, {product});
    bytes = pieces.bytes();
  }

  float* logits;                          // [vocab chunk][stride]
  float* partial;                         // see ChunkLogits
  float *max, *sum, *logit_sum, *target;  // [stride]
  float *factor, *smoothing;              // [stride]
  float* hidden_gradient = nullptr;       // [tokens chunk, hidden], where the tensor is not f32
  TensorView product_workspace;
  std::int64_t bytes;
};

class ChunkedLoss {
 public:
  ChunkedLoss(const LossProblem& problem, const LossForward& views, const LossChunks& chunks,
              const LossPieces& pieces, const Stream& stream)
      : problem_(problem),
        views_(views),
        chunks_(chunks),
        pieces_(pieces),
        stream_(stream),
        logits_(problem.softcap, pieces.partial, pieces.product_workspace, stream),
        targets_(problem, views) {}

  // Calls body(chunk) for every chunk of tokens whose statistics are known and loss is made; `kept` holds all
  // logits, and has them already where `made`.
  template <class Body>
  void for_each_chunk(float* kept, bool made, const Body& body) {
    double total = 0;
    for (std::int64_t begin = 0; begin < problem_.tokens; begin += chunks_.tokens) {
      Chunk chunk{.begin = begin,
                  .count = std::min(chunks_.tokens, problem_.tokens - begin),
                  .logits = kept == nullptr ? pieces_.logits : kept + begin / chunks_.tokens * kept_floats(),
                  .stride = ChunkLogits::stride_of(std::min(chunks_.tokens, problem_.tokens - begin)),
                  .counts = false};
      chunk.counts = targets_.any(begin, begin + chunk.count);
      if (chunk.counts) find_statistics(chunk, made);
      store_losses(chunk, total);
      body(chunk);
    }
    if (problem_.reduction != Reduction::none) views_.loss.data<float>()[0] = static_cast<float>(total);
  }

  struct Chunk {
    std::int64_t begin;   // its first token
    std::int64_t count;   // of tokens
    float* logits;        // of the part of the vocabulary at hand
    std::int64_t stride;  // of its logits
    bool counts;          // whether any of its labels does
  };

  // dX of the chunk, and its part of dW. The last part of the vocabulary is at hand.
  void add_gradients(const Chunk& chunk, const LossBackward& views) {
    const TensorView gradient = hidden_gradient(chunk, views);
    if (!chunk.counts) {
      store_hidden_gradient(chunk, gradient, views, true);
      return;
    }
    find_factors(chunk, views);
    for (std::int64_t word = 0; word < problem_.vocab; word += chunks_.vocab) {
      const std::int64_t words = std::min(chunks_.vocab, problem_.vocab - word);
      if (chunks_.vocab < problem_.vocab) make_logits(chunk, word, words, true);
      logits_.make_gradients(chunk.logits, words, chunk.count,
                             {.max = pieces_.max, .factor = pieces_.factor, .smoothing = pieces_.smoothing});
      subtract_labels(chunk, word, words, views);
      const TensorView dz = ChunkLogits::view(chunk.logits, words, chunk.count);
      logits_.multiply({dz.transpose(0, 1), views_.weight.slice(0, word, words), gradient, word > 0});
      logits_.multiply({dz, views_.hidden.slice(0, chunk.begin, chunk.count),
                        views.weight_gradient.slice(0, word, words), true});
    }
    store_hidden_gradient(chunk, gradient, views, false);
  }

 private:
  [[nodiscard]] std::int64_t kept_floats() const {
    return problem_.vocab * ChunkLogits::stride_of(chunks_.tokens);
  }

  void make_logits(const Chunk& chunk, std::int64_t word, std::int64_t words, bool capped) {
    logits_.make(chunk.logits, views_.weight.slice(0, word, words),
                 views_.hidden.slice(0, chunk.begin, chunk.count), capped);
  }

  void find_statistics(const Chunk& chunk, bool made) {
    const std::int64_t stride = chunk.stride;
    std::fill_n(pieces_.max, stride, -std::numeric_limits<float>::infinity());
    std::fill_n(pieces_.sum, stride, 0.0F);
    std::fill_n(pieces_.logit_sum, stride, 0.0F);
    for (std::int64_t word = 0; word < problem_.vocab; word += chunks_.vocab) {
      const std::int64_t words = std::min(chunks_.vocab, problem_.vocab - word);
      if (!made) make_logits(chunk, word, words, false);
      logits_.add_statistics(chunk.logits, words, chunk.count, made,
                             {.max = pieces_.max, .sum = pieces_.sum, .logit_sum = pieces_.logit_sum});
      for_each_label(chunk, word, words,
                     [&](std::int64_t t, float* logit, double) { pieces_.target[t] = *logit; });
    }
  }

  // body(t, logit, weight) for the tokens of the chunk that count and whose label is among the words at hand.
  template <class Body>
  void for_each_label(const Chunk& chunk, std::int64_t word, std::int64_t words, const Body& body) {
    for (std::int64_t t = 0; t < chunk.count; ++t) {
      const double weight = targets_.weight(chunk.begin + t);
      const std::int64_t label = targets_.label(chunk.begin + t) - word;
      if (weight != 0 && label >= 0 && label < words)
        body(t, chunk.logits + label * chunk.stride + t, weight);
    }
  }

  [[nodiscard]] double lse(std::int64_t t) const {
    return static_cast<double>(pieces_.max[t]) + std::log(static_cast<double>(pieces_.sum[t]));
  }

  // Writes the tokens' losses where nothing is reduced, and adds them to the total, one by one in the order
  // of the tokens: a sum per chunk would round differently for other chunks.
  void store_losses(const Chunk& chunk, double& total) {
    for (std::int64_t t = 0; t < chunk.count; ++t) {
      const double weight = targets_.weight(chunk.begin + t);
      double loss = 0;
      if (weight != 0) {
        const double smoothing = problem_.label_smoothing;
        const double log_sum = std::log(static_cast<double>(pieces_.sum[t]));
        const double max = pieces_.max[t];
        const double mean = static_cast<double>(pieces_.logit_sum[t]) / static_cast<double>(problem_.vocab);
        loss = (1 - smoothing) * (max - static_cast<double>(pieces_.target[t]) + log_sum) +
               smoothing * (max - mean + log_sum) + problem_.z_loss * lse(t) * lse(t);
      }
      total += weight * loss;
      if (problem_.reduction == Reduction::none) {
        views_.loss.data<float>()[chunk.begin + t] = static_cast<float>(weight * loss);
      }
    }
  }

  // What a token's loss is multiplied by on its way into the gradients.
  [[nodiscard]] double upstream(std::int64_t token, double weight, const LossBackward& views) const {
    const std::int64_t at = problem_.reduction == Reduction::none ? token : 0;
    return weight * static_cast<double>(views.loss_gradient.data<float>()[at]);
  }

  void find_factors(const Chunk& chunk, const LossBackward& views) {
    std::fill_n(pieces_.factor, chunk.stride, 0.0F);
    std::fill_n(pieces_.smoothing, chunk.stride, 0.0F);
    for (std::int64_t t = 0; t < chunk.count; ++t) {
      const double weight = targets_.weight(chunk.begin + t);
      if (weight == 0) continue;
      const double scale = upstream(chunk.begin + t, weight, views);
      const double slope = 1 + 2 * static_cast<double>(problem_.z_loss) * lse(t);
      pieces_.factor[t] = static_cast<float>(scale * slope / static_cast<double>(pieces_.sum[t]));
      pieces_.smoothing[t] =
          static_cast<float>(scale * problem_.label_smoothing / static_cast<double>(problem_.vocab));
    }
  }

  // dZ of the label less its share, through the softcap.
  void subtract_labels(const Chunk& chunk, std::int64_t word, std::int64_t words, const LossBackward& views) {
    for_each_label(chunk, word, words, [&](std::int64_t t, float* gradient, double weight) {
      const double capped =
          problem_.softcap == 0 ? 0 : static_cast<double>(pieces_.target[t]) / problem_.softcap;
      const double share = (1 - static_cast<double>(problem_.label_smoothing)) * (1 - capped * capped);
      *gradient -= static_cast<float>(upstream(chunk.begin + t, weight, views) * share);
    });
  }

  [[nodiscard]] TensorView hidden_gradient(const Chunk& chunk, const LossBackward& views) const {
    if (problem_.dtype == DType::f32) return views.hidden_gradient.slice(0, chunk.begin, chunk.count);
    return {pieces_.hidden_gradient, DType::f32, {chunk.count, problem_.hidden}};
  }

  void store_hidden_gradient(const Chunk& chunk, const TensorView& gradient, const LossBackward& views,
                             bool zero) const {
    auto* sums = gradient.data<float>();
    if (zero) std::fill_n(sums, gradient.elements(), 0.0F);
    if (problem_.dtype == DType::f32) return;
    const std::int64_t offset = chunk.begin * problem_.hidden;
    parallel_for(stream_, chunk.count, [&](std::int64_t t) {
      for (std::int64_t i = t * problem_.hidden; i < (t + 1) * problem_.hidden; ++i) {
        if (problem_.dtype == DType::bf16) {
          views.hidden_gradient.data<BFloat16>()[offset + i] = BFloat16(sums[i]);
        } else {
          views.hidden_gradient.data<Float16>()[offset + i] = Float16(sums[i]);
        }
      }
    });
  }

  const LossProblem& problem_;
  const LossForward& views_;
  const LossChunks& chunks_;
  const LossPieces& pieces_;
  const Stream& stream_;
  ChunkLogits logits_;
  TokenTargets targets_;
};

// The rows of the family: how many tokens they take at once where nobody says, and whether they keep logits.
enum class Setting : std::uint8_t { fused, chunked_recompute, chunked, standard };

constexpr bool keeps(Setting setting) {
  return setting == Setting::chunked || setting == Setting::standard;
}

LossChunks chunks_of(Setting setting, const LossProblem& problem) {
  switch (setting) {
    case Setting::fused: return resolve(problem, own_tokens(problem));
    case Setting::standard:
      return {.tokens = std::max<std::int64_t>(problem.tokens, 1), .vocab = problem.vocab};
    default: return resolve(problem, kSeedTokens);
  }
}

Support supports_any(const LossProblem&, const DeviceDescription& device) {
  return device.kind == DeviceKind::cpu ? Support::yes() : Support::no("it runs on a CPU");
}

Support supports_whole_vocabulary(const LossProblem& problem, const DeviceDescription& device) {
  if (problem.chunk_vocab != 0) return Support::no("it keeps logits of the whole vocabulary");
  return supports_any(problem, device);
}

template <Setting kSetting>
std::int64_t workspace_bytes(const LossProblem& problem, const DeviceDescription& device, Pass pass) {
  const LossChunks chunks = chunks_of(kSetting, problem);
  return LossPieces(problem, chunks, keeps(kSetting), pass, device, nullptr).bytes;
}

template <Setting kSetting>
std::int64_t saved_bytes(const LossProblem& problem) {
  if (!keeps(kSetting)) return 0;
  const LossChunks chunks = chunks_of(kSetting, problem);
  const std::int64_t last = problem.tokens % chunks.tokens;
  const std::int64_t columns =
      checked_add(checked_multiply(problem.tokens / chunks.tokens, ChunkLogits::stride_of(chunks.tokens)),
                  ChunkLogits::stride_of(last));
  return checked_multiply(checked_multiply(columns, problem.vocab), 4);
}

template <Setting kSetting, class Body>
void run(const LossProblem& problem, const LossForward& views, Pass pass, TensorView workspace,
         const Stream& stream, const Body& body) {
  const LossChunks chunks = chunks_of(kSetting, problem);
  const LossPieces pieces(problem, chunks, keeps(kSetting), pass, *stream.device,
                          static_cast<std::byte*>(workspace.raw()));
  check(workspace.bytes() >= pieces.bytes, "the loss needs a workspace of {} bytes, not {}", pieces.bytes,
        workspace.bytes());
  ChunkedLoss loss(problem, views, chunks, pieces, stream);
  auto* kept = keeps(kSetting) ? static_cast<float*>(views.saved.raw()) : nullptr;
  loss.for_each_chunk(kept, keeps(kSetting) && pass == Pass::backward,
                      [&](const ChunkedLoss::Chunk& chunk) { body(loss, chunk); });
}

template <Setting kSetting>
void forward(const LossProblem& problem, const LossForward& views, TensorView workspace,
             const Stream& stream) {
  run<kSetting>(problem, views, Pass::forward, workspace, stream,
                [](ChunkedLoss&, const ChunkedLoss::Chunk&) {});
}

template <Setting kSetting>
void backward(const LossProblem& problem, const LossBackward& views, TensorView workspace,
              const Stream& stream) {
  run<kSetting>(
      problem, views.forward, Pass::backward, workspace, stream,
      [&](ChunkedLoss& loss, const ChunkedLoss::Chunk& chunk) { loss.add_gradients(chunk, views); });
}

template <Setting kSetting>
constexpr LossImplementation row(std::string_view name) {
  return {.name = name,
          .supports = keeps(kSetting) ? supports_whole_vocabulary : supports_any,
          .workspace_bytes = workspace_bytes<kSetting>,
          .saved_bytes = saved_bytes<kSetting>,
          .forward = forward<kSetting>,
          .backward = backward<kSetting>};
}

}  // namespace

const LossImplementation& fused_loss() {
  static constexpr LossImplementation kRow = row<Setting::fused>("fused");
  return kRow;
}

const LossImplementation& chunked_recomputing_loss() {
  static constexpr LossImplementation kRow = row<Setting::chunked_recompute>("chunked-recompute");
  return kRow;
}

const LossImplementation& chunked_loss() {
  static constexpr LossImplementation kRow = row<Setting::chunked>("chunked");
  return kRow;
}

const LossImplementation& standard_loss() {
  static constexpr LossImplementation kRow = row<Setting::standard>("standard");
  return kRow;
}

LossChunks fit_loss_chunks(const LossProblem& problem, const DeviceDescription& device,
                           std::int64_t budget_bytes) {
  if (device.kind == DeviceKind::cuda) return fit_cuda_loss_chunks(problem, device, budget_bytes);
  const auto added = [&](LossChunks chunks) {
    LossProblem chunked = problem;
    chunked.chunk_tokens = chunks.tokens;
    chunked.chunk_vocab = chunks.vocab;
    return fused_loss().workspace_bytes(chunked, device, Pass::backward);
  };
  // The largest count of steps for which `at(steps)` fits; at least one.
  const auto most = [&](std::int64_t limit, const auto& at) {
    std::int64_t low = 1;
    std::int64_t high = std::max<std::int64_t>(limit, 1);
    while (low < high) {
      const std::int64_t middle = low + (high - low + 1) / 2;
      added(at(middle)) <= budget_bytes ? low = middle : high = middle - 1;
    }
    return at(low);
  };
  const auto whole_rows = [](std::int64_t steps) { return LossChunks{steps * kLeastTokens, 0}; };
  const LossChunks rows = most(divide_up(problem.tokens, kLeastTokens), whole_rows);
  if (added(rows) <= budget_bytes) {
    return rows.tokens >= problem.tokens ? LossChunks{problem.tokens, 0} : rows;
  }
  return most(problem.vocab / kBlockRows, [&](std::int64_t steps) {
    return LossChunks{std::min(kLeastTokens, problem.tokens), steps * kBlockRows};
  });
}

}  // namespace headroom
