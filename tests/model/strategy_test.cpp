#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "headroom/core/error.h"
#include "headroom/model.h"

namespace headroom {
namespace {

TEST(Strategy, ValidatesEveryField) {
  Strategy good;
  good.layers = {.keep_all = 10, .keep_attention = 6, .recompute = 16, .offload = 4, .input_every = 2};
  validate(good, 36);
  const std::vector<std::function<void(Strategy&)>> breaks = {
      [](auto& s) { s.layers.keep_all = 11; },
      [](auto& s) { s.layers.keep_all = -1; },
      [](auto& s) { s.layers.offload = 1'000'000; },
      [](auto& s) { s.layers.input_every = 0; },
      [](auto& s) { s.loss_chunk_tokens = -1; },
      [](auto& s) { s.loss_chunk_vocab = -1; },
      [](auto& s) { s.mlp_tile_tokens = -1; },
      [](auto& s) { s.accumulation = 0; },
      [](auto& s) { s.ring_ranks = 0; },
      [](auto& s) { s.head_group = 2; },
      [](auto& s) { s.data_ranks = 0; },
      [](auto& s) { s.data_ranks = 2, s.ring_ranks = 1000; },
      [](auto& s) { s.sharding = Sharding::optimizer; },
      [](auto& s) { s.state = StatePrecision::bf16; },
  };
  for (std::size_t i = 0; i < breaks.size(); ++i) {
    Strategy broken = good;
    breaks[i](broken);
    EXPECT_THROW(validate(broken, 36), Error) << i;
  }
}

}  // namespace
}  // namespace headroom
