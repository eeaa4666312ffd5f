#include "loss/chunk_logits.h"

#include <algorithm>
#include <cmath>

#include "headroom/cpu/thread_pool.h"

namespace headroom {
namespace {

// Adds a block's statistics to a token's running ones.
void merge(float block_max, float block_sum, float& max, float& sum) {
  if (block_max > max) {
    sum = sum * std::exp(max - block_max) + block_sum;
    max = block_max;
  } else {
    sum += block_sum * std::exp(block_max - max);
  }
}

// body(first row, rows) of every block, in parallel.
template <class Body>
void for_each_block(const Stream& stream, std::int64_t words, const Body& body) {
  constexpr std::int64_t kRows = ChunkLogits::kBlockRows;
  parallel_for(stream, divide_up(words, kRows),
               [&](std::int64_t block) { body(block * kRows, std::min(kRows, words - block * kRows)); });
}

}  // namespace

void ChunkLogits::make(float* logits, const TensorView& weight, const TensorView& hidden, bool capped) const {
  const std::int64_t words = weight.extent(0);
  const std::int64_t tokens = hidden.extent(0);
  const std::int64_t stride = stride_of(tokens);
  // Z <- W X^T; the padding tokens get zeros, so that lanes beyond the last do no harm
  for (std::int64_t row = 0; row < words && stride > tokens; ++row) {
    std::fill(logits + row * stride + tokens, logits + (row + 1) * stride, 0.0F);
  }
  multiply({weight, hidden.transpose(0, 1), view(logits, words, tokens)});
  if (!capped || softcap_ == 0) return;
  for_each_block(stream_, words, [&](std::int64_t row, std::int64_t rows) {
    kernels_.cap(logits + row * stride, rows, stride, softcap_);
  });
}

void ChunkLogits::add_statistics(float* logits, std::int64_t words, std::int64_t tokens, bool capped,
                                 const cpu::LogitStatistics& running) const {
  const std::int64_t stride = stride_of(tokens);
  for_each_block(stream_, words, [&](std::int64_t row, std::int64_t rows) {
    float* partial = partial_ + row / kBlockRows * 3 * stride;
    kernels_.statistics(logits + row * stride, rows, stride, capped ? 0 : softcap_,
                        {.max = partial, .sum = partial + stride, .logit_sum = partial + 2 * stride});
  });
  for (std::int64_t block = 0; block < divide_up(words, kBlockRows); ++block) {
    const float* partial = partial_ + block * 3 * stride;
    for (std::int64_t t = 0; t < tokens; ++t) {
      merge(partial[t], partial[stride + t], running.max[t], running.sum[t]);
      running.logit_sum[t] += partial[2 * stride + t];
    }
  }
}

void ChunkLogits::make_gradients(float* logits, std::int64_t words, std::int64_t tokens,
                                 const cpu::LogitGradient& rule) const {
  const std::int64_t stride = stride_of(tokens);
  for_each_block(stream_, words, [&](std::int64_t row, std::int64_t rows) {
    kernels_.gradient(logits + row * stride, rows, stride, softcap_, rule);
  });
}

}  // namespace headroom
