// A random order of 0 .. size - 1 that is computed where it is asked for, not stored: a Feistel network over
// the next even power of two, walked until it lands inside. Its rounds draw from the given sequence, which
// nothing else may use below index 2^35.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "headroom/core/error.h"
#include "headroom/core/random.h"

namespace headroom {

class Permutation {
 public:
  Permutation(Random random, std::int64_t size) : random_(random), size_(static_cast<std::uint64_t>(size)) {
    check(size > 0, "a permutation of {} is impossible", size);
    // At least 64 values: networks over fewer know too few orders.
    half_bits_ = std::max(3, (static_cast<int>(std::bit_width(size_ - 1)) + 1) / 2);
    half_mask_ = (std::uint64_t{1} << half_bits_) - 1;
  }

  // What stands at a place in [0, size).
  [[nodiscard]] std::int64_t operator()(std::int64_t place) const {
    // The network is a bijection, so the walk from inside comes back inside; at most four steps on average
    // above 64 values.
    auto value = static_cast<std::uint64_t>(place);
    do value = scramble(value);
    while (value >= size_);
    return static_cast<std::int64_t>(value);
  }

 private:
  static constexpr std::uint64_t kRounds = 6;

  [[nodiscard]] std::uint64_t scramble(std::uint64_t value) const {
    std::uint64_t left = value >> half_bits_;
    std::uint64_t right = value & half_mask_;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t mixed = left ^ (random_.bits((round << 32) | right) & half_mask_);
      left = right;
      right = mixed;
    }
    return (left << half_bits_) | right;
  }

  Random random_;
  std::uint64_t size_;
  std::uint64_t half_mask_ = 0;
  int half_bits_ = 0;
};

}  // namespace headroom
