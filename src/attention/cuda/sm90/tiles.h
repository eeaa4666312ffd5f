// The head sizes that the Hopper kernels are compiled for, with the tile shapes of each and their reasons.
// Head sizes between are padded to the next. cmake/sm90.cmake reads the sizes from the table's rows.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "attention/cuda/tiles.h"

namespace headroom::cuda::sm90 {

// Forward: a block of query rows (64 per consumer warpgroup) passes over key tiles. A thread of a consumer
// holds keys / 2 scores, head_dim / 2 outputs and keys / 4 packed probabilities: at most about 200 of its
// registers.
struct ForwardTile {
  int consumers;  // warpgroups of 64 query rows
  int keys;
  int stages;        // of keys and of values, in shared memory
  int query_stages;  // 2: the next tile's queries arrive before this one's are done with
  int guesses;       // scores that are exponentiated before O is waited for, half of them where registers
                     // hold as many; 0: the maximum comes first

  [[nodiscard]] constexpr int rows() const { return 64 * consumers; }
  bool operator==(const ForwardTile&) const = default;
};

// Backward: a block keeps key rows (64 per consumer, two consumers) and their dK and dV, and passes over
// query tiles. A thread holds head_dim registers of sums, queries / 2 scores and as many gradients of them.
// Larger heads have a kernel of their own, for 64 keys, where one consumer holds dV and the other dK.
struct BackwardTile {
  int queries;
  int keys;
  // Where registers allow:
  bool value_in_registers = false;  // as the left operand of dP
  bool wide_probabilities = false;  // P stays in f32 for dS, beside its 16 bits for dV
  bool starts_from_delta = false;   // dP begins as -delta, which then needs no register of its own
  bool values_early = false;        // all products of dV are issued before dP is waited for

  bool operator==(const BackwardTile&) const = default;
};

// Those larger heads have dQ from a kernel of its own, whose blocks keep queries and pass over keys.
struct QueriesTile {
  int queries;
  int keys;
  int key_stages;
  int value_stages;
  bool overlaps;  // products with arithmetic of the same consumer, where registers hold both

  bool operator==(const QueriesTile&) const = default;
};

struct HeadTiles {
  int head_dim;
  ForwardTile forward;
  BackwardTile backward;
  QueriesTile queries{};  // zeros: dQ comes from backward

  [[nodiscard]] constexpr bool queries_apart() const { return queries.queries > 0; }
  bool operator==(const HeadTiles&) const = default;
};

inline constexpr std::array<HeadTiles, 5> kHeadTiles = {{
    // Exponentials take as long as products: they hide behind another consumer.
    {64, {3, 128, 2, 2, 8}, {.queries = 128, .keys = 128, .values_early = true}},
    // 160 registers per thread: 48 scores, 48 outputs, 24 probabilities. In backward a dP that starts from
    // delta is slower, and without that there are no registers for early products of dV.
    {96,
     {3, 96, 2, 2, 12},
     {.queries = 64, .keys = 128, .value_in_registers = true, .wide_probabilities = true}},
    // 160 registers of scores, outputs and probabilities; as wide as a causal block.
    {128,
     {2, 128, 2, 2, 32},
     {.queries = 64,
      .keys = 128,
      .wide_probabilities = true,
      .starts_from_delta = true,
      .values_early = true}},
    // 192 KiB of shared memory in forward; 218 for dK and dV, 217 for dQ.
    {192, {2, 96, 2, 1, 24}, {96, 64}, {128, 64, 3, 2, true}},
    // 224 KiB of shared memory; no registers for products that overlap.
    {256, {2, 80, 2, 1, 0}, {64, 64}, {128, 64, 2, 1, false}},
}};

// General kernels do what the plain ones have no registers for, a softcap and block lists. A softcap's
// hyperbolic tangents need registers that a third consumer, 80 keys with a head of 256, 128 queries or V do
// not leave.
constexpr HeadTiles head_tiles(int head_dim, bool general) {
  for (HeadTiles tiles : kHeadTiles) {
    if (head_dim > tiles.head_dim) continue;
    if (general) {
      tiles.forward.consumers = 2;
      if (tiles.forward.keys < 96) tiles.forward.keys = 64;
      tiles.backward = {64, tiles.backward.keys};
    }
    return tiles;
  }
  return {};
}

// Waves of key tiles, about one tile for each block, of so many heads side by side; every other one passes
// over its queries from the first up. Which wave a tile is in follows from its place in its head, and not
// from how many heads a launch has: parts of a problem have the bits of the whole.
struct Waves {
  int heads = 0;                                // 0: every wave passes over its queries from the last down
  int tiles = std::numeric_limits<int>::max();  // of a head, in a wave; without waves, all

  [[nodiscard]] HEADROOM_HOST_DEVICE
  bool rises(int tile) const { return tile / tiles % 2 == 1; }
};

}  // namespace headroom::cuda::sm90
