// How far a ring runs ahead of what it computes: what ring_exchange.cpp does and attention_time.cpp plays.
#pragma once

#include <cstdint>

#include "headroom/core/kernel_family.h"

namespace headroom {

struct RingDepth {
  std::int64_t keys = 1;      // slots whose K and V are under way while the slot before them is computed
  std::int64_t computed = 1;  // transfers whose gradients are computed and sent at a time
  std::int64_t received = 1;  // transfers whose gradients arrive at a time
  bool packs = false;         // gradients are packed into what is sent, so the next may be computed meanwhile

  // A causal mask gives a rank twice the work with one transfer that it has with another. One slot ahead, the
  // link stands still through the long ones and ranks wait in the short ones: over a link that takes 80 % of
  // computing, four ranks take 1.28 x computing in forward, and 1.36 x and a hop in backward. Forward takes
  // 1.03 x two slots ahead; the bound on its memory has no room for a third. Backward takes 1.07 x and a hop
  // with two of everything, and 1.03 x and a hop like this. Where gradients arrive in one buffer alone, it
  // takes 1.18 x and a hop.
  // Packed transfers need a buffer on both sides of every message, and are one slot ahead.
  [[nodiscard]] static constexpr RingDepth of(bool packs, Pass pass) {
    if (packs) return {.packs = true};
    if (pass == Pass::forward) return {.keys = 2};
    return {.keys = 3, .computed = 3, .received = 2};
  }
};

}  // namespace headroom
