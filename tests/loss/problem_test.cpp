#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "headroom/core/bytes.h"
#include "headroom/loss.h"

namespace headroom {
namespace {

TEST(LossProblem, ValidatesEveryField) {
  const LossProblem good{.tokens = 12, .hidden = 8, .vocab = 100};
  validate(good);
  const std::vector<std::function<void(LossProblem&)>> breaks = {
      [](auto& p) { p.tokens = -1; },         [](auto& p) { p.hidden = 0; },
      [](auto& p) { p.vocab = 0; },           [](auto& p) { p.dtype = DType::i32; },
      [](auto& p) { p.label_smoothing = 1; }, [](auto& p) { p.label_smoothing = -0.1F; },
      [](auto& p) { p.z_loss = -1; },         [](auto& p) { p.softcap = -1; },
      [](auto& p) { p.z_loss = INFINITY; },   [](auto& p) { p.softcap = INFINITY; },
      [](auto& p) { p.chunk_tokens = -1; },   [](auto& p) { p.chunk_vocab = -1; },
      [](auto& p) { p.sequence_tokens = 5; }, [](auto& p) { p.sequence_tokens = -4; },
  };
  for (std::size_t i = 0; i < breaks.size(); ++i) {
    LossProblem broken = good;
    breaks[i](broken);
    EXPECT_THROW(validate(broken), Error) << i;
  }
}

TEST(LossProblem, TheLogitsThatStartedItAll) {
  const LossProblem p{.tokens = 131'072, .hidden = 2560, .vocab = 151'936, .dtype = DType::bf16};
  EXPECT_EQ(format_bytes(logits_bytes(p)), "37.09 GiB");
  EXPECT_DOUBLE_EQ(flops(p, Pass::forward) + flops(p, Pass::backward), 6.0 * 131'072 * 2560 * 151'936);
}

}  // namespace
}  // namespace headroom
