// The logits of a chunk of tokens on the CPU, transposed, [words][tokens]: then the weight is the left
// operand of its product and is read as it lies, and softmax statistics run along lanes. Statistics are those
// of fixed blocks of kBlockRows words, merged in order.
#pragma once

#include <cstdint>

#include "headroom/core/checked.h"
#include "headroom/core/stream.h"
#include "loss/cpu/kernels.h"
#include "ops/matmul.h"

namespace headroom {

class ChunkLogits {
 public:
  static constexpr std::int64_t kBlockRows = 512;  // 384 tokens of them are 768 KiB, in L2
  static constexpr std::int64_t kMaxLanes = 16;

  // Tokens from one row of logits to the next.
  [[nodiscard]] static std::int64_t stride_of(std::int64_t tokens) { return round_up(tokens, kMaxLanes); }
  // What `partial` has to hold for so many words.
  [[nodiscard]] static std::int64_t partial_floats(std::int64_t words, std::int64_t stride) {
    return divide_up(words, kBlockRows) * 3 * stride;
  }

  // What the logits of every chunk share. The stream has to outlive this.
  ChunkLogits(float softcap, float* partial, const TensorView& product_workspace, const Stream& stream)
      : softcap_(softcap),
        partial_(partial),
        product_workspace_(product_workspace),
        stream_(stream),
        kernels_(cpu::loss_kernels(stream.device->simd)),
        product_(product_row(*stream.device)) {}

  void multiply(const Product& product) const { product_.run(product, product_workspace_, stream_); }

  // [words, tokens]
  [[nodiscard]] static TensorView view(float* logits, std::int64_t words, std::int64_t tokens) {
    return TensorView(logits, DType::f32, {words, stride_of(tokens)}).slice(1, 0, tokens);
  }
  // logits <- weight hidden^T, capped where that is asked for.
  void make(float* logits, const TensorView& weight, const TensorView& hidden, bool capped) const;
  // Adds the statistics of so many words to the running ones of the tokens. Logits that are not capped yet
  // become capped ones.
  void add_statistics(float* logits, std::int64_t words, std::int64_t tokens, bool capped,
                      const cpu::LogitStatistics& running) const;
  // Capped logits become their gradients, all but the labels' share.
  void make_gradients(float* logits, std::int64_t words, std::int64_t tokens,
                      const cpu::LogitGradient& rule) const;

 private:
  float softcap_;
  float* partial_;  // [blocks][3][stride]: max, sum, logit_sum of a block
  TensorView product_workspace_;
  const Stream& stream_;
  const cpu::LossKernels& kernels_;
  const ProductRow& product_;
};

}  // namespace headroom
