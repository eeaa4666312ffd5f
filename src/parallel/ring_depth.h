// How far a ring runs ahead of what it computes: what ring_exchange.cpp does and attention_time.cpp plays.
#pragma once

#include <cstdint>

namespace headroom {

struct RingDepth {
  std::int64_t keys = 2;      // slots whose K and V are under way while the slot before them is computed
  std::int64_t computed = 2;  // transfers whose gradients are computed and sent at a time
  std::int64_t received = 2;  // transfers whose gradients arrive at a time
  bool packs = false;         // gradients are packed into what is sent, so the next may be computed meanwhile

  // A causal mask gives a rank with one transfer twice the work that it gives with another. One slot ahead,
  // the link waits through the long ones and ranks wait in the short ones: over a link that takes 80 % of
  // computing, four ranks take 1.28 x computing in forward and 1.36 x and a hop in backward. Two slots ahead
  // they take 1.03 x, and 1.07 x and a hop. Three would take 1.00 x and 1.03 x, and more memory than two
  // chunks of K and V and three of gradients.
  // Packed transfers need a buffer on both sides of every message, and are one slot ahead.
  [[nodiscard]] static constexpr RingDepth of(bool packs) {
    return packs ? RingDepth{.keys = 1, .computed = 1, .received = 1, .packs = true} : RingDepth{};
  }
};

}  // namespace headroom
