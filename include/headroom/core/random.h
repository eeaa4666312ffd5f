// Random numbers as a pure function of (seed, stream, index): Philox4x32-10 (Salmon et al., SC 2011). Any
// thread may draw any index, so the bits do not depend on how many threads there are. Works on host and
// device.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define HEADROOM_HOST_DEVICE __host__ __device__
#else
#define HEADROOM_HOST_DEVICE
#endif

namespace headroom {

struct Philox {
  std::uint32_t word[4];
};

// Ten rounds over a 128-bit counter with a 64-bit key.
HEADROOM_HOST_DEVICE
constexpr Philox philox(Philox counter, std::uint64_t key) {
  auto key_low = static_cast<std::uint32_t>(key);
  auto key_high = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t even = std::uint64_t{0xD2511F53u} * counter.word[0];
    const std::uint64_t odd = std::uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(odd >> 32) ^ counter.word[1] ^ key_low,
                static_cast<std::uint32_t>(odd),
                static_cast<std::uint32_t>(even >> 32) ^ counter.word[3] ^ key_high,
                static_cast<std::uint32_t>(even)}};
    key_low += 0x9E3779B9u;
    key_high += 0xBB67AE85u;
  }
  return counter;
}

// One independent sequence of a seed: a tensor's initial values, a task's data.
class Random {
 public:
  HEADROOM_HOST_DEVICE
  constexpr explicit Random(std::uint64_t seed, std::uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  // Uniform over all 64-bit words.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  constexpr std::uint64_t bits(std::uint64_t index) const {
    const Philox pair = bits_of_pair(index / 2);
    const int half = static_cast<int>(index % 2) * 2;
    return (std::uint64_t{pair.word[half + 1]} << 32) | pair.word[half];
  }

  // bits(2 * pair) and bits(2 * pair + 1) at the cost of one, lower words first.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  constexpr Philox bits_of_pair(std::uint64_t pair) const { return philox(counter(pair), seed_); }

  // Uniform in [0, 1), all 53 bits random.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  constexpr double uniform(std::uint64_t index) const {
    return static_cast<double>(bits(index) >> 11) * 0x1p-53;
  }

  // Uniform in [0, bound) without modulo bias worth naming: the error is bound / 2^64.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  constexpr std::uint64_t below(std::uint64_t index, std::uint64_t bound) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<Wide>(bits(index)) * bound) >> 64);
  }

  // Standard normal, Box-Muller on the index's own block.
  [[nodiscard]] HEADROOM_HOST_DEVICE
  double normal(std::uint64_t index) const {
    const Philox block = philox(counter(index), ~seed_);
    const double radius = (static_cast<double>(block.word[0]) + 1.0) * 0x1p-32;  // (0, 1]
    const double angle = static_cast<double>(block.word[1]) * (6.283185307179586 * 0x1p-32);
    return std::sqrt(-2.0 * std::log(radius)) * std::cos(angle);
  }

 private:
  [[nodiscard]] HEADROOM_HOST_DEVICE
  constexpr Philox counter(std::uint64_t block) const {
    return {{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
             static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)}};
  }

  std::uint64_t seed_;
  std::uint64_t stream_;
};

}  // namespace headroom
