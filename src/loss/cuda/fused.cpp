// The loss on a GPU, in chunks of tokens. A chunk's logits are in the dtype of the problem, and their
// gradients take their place:
//   Z <- X W^T; losses, and dZ in place of Z; dX <- dZ W; dW <- dW + dZ^T X
// The last product reads and writes all of dW in f32, and is the faster the more tokens it takes at once: the
// chunk is as large as it may be. The third one has few columns and is fastest over a thousand tokens.
#include <algorithm>

#include "core/pieces.h"
#include "loss/cuda/softmax.h"
#include "loss/implementations.h"
#include "ops/matmul.h"

namespace headroom {
namespace {

constexpr std::int64_t kOwnLogitsBytes = 1484LL << 20;  // where nobody says: 5,120 tokens of 151,936 words
constexpr std::int64_t kGradientTokens = 1024;          // of a product that gives dX
constexpr std::int64_t kForwardTokens = 2048;           // of a chunk without gradients
constexpr std::int64_t kTileTokens = 128;
constexpr std::int64_t kRowAlignment = 64;  // elements; what products and copies like

// As many tokens of a chunk as are fast.
std::int64_t fast_tokens(const LossProblem& problem) {
  const std::int64_t row_bytes = round_up(problem.vocab, kRowAlignment) * size_bytes(problem.dtype);
  const std::int64_t fit = kOwnLogitsBytes / row_bytes;
  const std::int64_t unit = fit >= kGradientTokens ? kGradientTokens : kTileTokens;
  const std::int64_t fast = std::max(fit / unit * unit, kTileTokens);
  return std::clamp<std::int64_t>(fast, 1, std::max<std::int64_t>(problem.tokens, 1));
}

struct ChunkPieces {
  ChunkPieces(const LossProblem& problem, Pass pass, const DeviceDescription& device, std::byte* base) {
    Pieces pieces(base);
    const std::int64_t stride = round_up(problem.vocab, kRowAlignment);
    const std::int64_t row_bytes = stride * size_bytes(problem.dtype);
    tokens = problem.chunk_tokens == 0 ? fast_tokens(problem)
                                       : std::clamp<std::int64_t>(problem.chunk_tokens, 1,
                                                                  std::max<std::int64_t>(problem.tokens, 1));
    if (pass == Pass::forward) tokens = std::min(tokens, kForwardTokens);
    // First: cuBLASLt wants it at a multiple of 256 bytes.
    const std::int64_t product =
        std::max({product_workspace_bytes(problem.vocab, problem.hidden, device, problem.dtype),
                  product_workspace_bytes(problem.hidden, problem.vocab, device, problem.dtype),
                  product_workspace_bytes(problem.hidden, tokens, device)});
    product_workspace = TensorView(pieces.take<std::byte>(product), DType::u8, {product});
    logits = TensorView(pieces.take<std::byte>(checked_multiply(tokens, row_bytes)), problem.dtype,
                        {tokens, stride})
                 .slice(1, 0, problem.vocab);
    scratch.divisor = pieces.take<double>(1);
    scratch.losses = pieces.take<double>(problem.tokens);
    bytes = pieces.bytes();
  }

  std::int64_t tokens;  // of a chunk
  TensorView logits;    // [tokens, vocab]
  cuda::LossScratch scratch;
  TensorView product_workspace;
  std::int64_t bytes;
};

// Both passes; without gradients the losses alone.
void run(const LossProblem& problem, const LossForward& views, const LossBackward* gradients,
         TensorView workspace, const Stream& stream) {
  const Pass pass = gradients == nullptr ? Pass::forward : Pass::backward;
  const ChunkPieces pieces(problem, pass, *stream.device, static_cast<std::byte*>(workspace.raw()));
  check(workspace.bytes() >= pieces.bytes, "the loss needs a workspace of {} bytes, not {}", pieces.bytes,
        workspace.bytes());
  const ProductRow& row = product_row(*stream.device);
  const auto multiply = [&](const Product& product) { row.run(product, pieces.product_workspace, stream); };
  const LossLabels labels = LossLabels::of(problem, views);
  cuda::loss_divisor(problem, labels, pieces.scratch, stream);
  for (std::int64_t begin = 0; begin < problem.tokens; begin += pieces.tokens) {
    const std::int64_t count = std::min(pieces.tokens, problem.tokens - begin);
    const TensorView z = pieces.logits.slice(0, 0, count);
    const TensorView x = views.hidden.slice(0, begin, count);
    multiply({x, views.weight.transpose(0, 1), z});
    cuda::softmax_loss(problem, labels, pieces.scratch, z, begin,
                       gradients == nullptr ? TensorView() : gradients->loss_gradient, stream);
    if (gradients == nullptr) continue;
    for (std::int64_t part = 0; part < count; part += kGradientTokens) {
      const std::int64_t tokens = std::min(kGradientTokens, count - part);
      multiply({z.slice(0, part, tokens), views.weight,
                gradients->hidden_gradient.slice(0, begin + part, tokens)});
    }
    multiply({z.transpose(0, 1), x, gradients->weight_gradient, true});
  }
  cuda::loss_total(problem, pieces.scratch, views.loss, stream);
}

Support supports(const LossProblem& problem, const DeviceDescription& device) {
  if (device.kind != DeviceKind::cuda) return Support::no("it runs on CUDA GPUs");
  if (problem.chunk_vocab != 0 && problem.chunk_vocab < problem.vocab) {
    return Support::no("it takes the whole vocabulary at once");
  }
  return Support::yes();
}

}  // namespace

LossChunks fit_cuda_loss_chunks(const LossProblem& problem, const DeviceDescription& device,
                                std::int64_t budget_bytes) {
  LossProblem chunked = problem;
  chunked.chunk_tokens = fast_tokens(problem);
  while (chunked.chunk_tokens > kTileTokens &&
         ChunkPieces(chunked, Pass::backward, device, nullptr).bytes > budget_bytes) {
    chunked.chunk_tokens = round_up(divide_up(chunked.chunk_tokens, 2), kTileTokens);
  }
  return {.tokens = chunked.chunk_tokens};
}

const LossImplementation& fused_cuda_loss() {
  static constexpr LossImplementation kRow{
      .name = "fused-cuda",
      .supports = supports,
      .workspace_bytes = [](const LossProblem& problem, const DeviceDescription& device,
                            Pass pass) { return ChunkPieces(problem, pass, device, nullptr).bytes; },
      .saved_bytes = [](const LossProblem&) -> std::int64_t { return 0; },
      .forward = [](const LossProblem& problem, const LossForward& views, TensorView workspace,
                    const Stream& stream) { run(problem, views, nullptr, workspace, stream); },
      .backward = [](const LossProblem& problem, const LossBackward& views, TensorView workspace,
                     const Stream& stream) { run(problem, views.forward, &views, workspace, stream); }};
  return kRow;
}

}  // namespace headroom
