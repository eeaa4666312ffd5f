// Tile shapes of the Hopper kernels, one row per head size, with reasons. Head sizes between are padded to
// the next.
#pragma once

#include <array>
#include <cstdint>

namespace headroom::cuda::sm90 {

// Forward: a block of query rows (64 per consumer warpgroup) passes over key tiles. A thread of a consumer
// holds keys / 2 scores, head_dim / 2 outputs and keys / 4 packed probabilities: at most about 200 of its
// registers.
struct ForwardTile {
  int head_dim;
  int consumers;  // warpgroups of 64 query rows
  int keys;
  int stages;  // of keys and of values, in shared memory

  [[nodiscard]] constexpr int rows() const { return 64 * consumers; }
  bool operator==(const ForwardTile&) const = default;
};
inline constexpr std::array<ForwardTile, 5> kForwardTiles = {{
    {64, 3, 128, 2},   // exponentials take as long as products: they hide behind another consumer
    {96, 3, 96, 2},    // 160 registers per thread: 48 scores, 48 outputs, 24 probabilities
    {128, 2, 128, 2},  // 160 registers of scores, outputs and probabilities; as wide as a causal block
    {192, 2, 96, 2},   // 192 KiB of shared memory
    {256, 2, 80, 2},   // 224 KiB of shared memory
}};

// General kernels do what the plain ones have no registers for, a softcap and block lists. A softcap's
// hyperbolic tangents need registers that a third consumer, or 80 keys with a head of 256, do not leave.
constexpr ForwardTile forward_tile(int head_dim, bool general) {
  for (ForwardTile tile : kForwardTiles) {
    if (head_dim > tile.head_dim) continue;
    if (general) tile.consumers = 2;
    if (general && tile.keys < 96) tile.keys = 64;
    return tile;
  }
  return {};
}

// Backward: a block keeps key rows (64 per consumer, two consumers) and their dK and dV, and passes over
// query tiles. A thread holds head_dim registers of sums, queries / 2 scores and as many gradients of them.
// Larger heads have a kernel of their own, 64 keys by 64 queries, where one consumer holds dV and the other
// dK.
struct BackwardTile {
  int head_dim;
  int queries;
  int keys;

  bool operator==(const BackwardTile&) const = default;
};
inline constexpr std::array<BackwardTile, 5> kBackwardTiles = {{
    {64, 128, 128},
    {96, 64, 128},
    {128, 64, 128},
    {192, 64, 64},
    {256, 64, 64},
}};

constexpr BackwardTile backward_tile(int head_dim, bool general) {
  for (BackwardTile tile : kBackwardTiles) {
    if (head_dim > tile.head_dim) continue;
    if (general) tile.queries = 64;
    return tile;
  }
  return {};
}

// Whether a head size has backward kernels; columns past a problem's own are zeros.
constexpr bool has_backward(int head_dim) {
  return backward_tile(head_dim, false).head_dim == head_dim;
}

// Those larger heads have dQ from a kernel of its own, whose blocks keep queries and pass over keys.
struct ApartTile {
  int queries;
  int keys;
};
inline constexpr ApartTile kApartTile = {128, 64};
constexpr bool queries_apart(int head_dim) {
  return head_dim > 128;
}

}  // namespace headroom::cuda::sm90
