// What the Hopper kernels are launched with.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "attention/cuda/call.h"
#include "attention/cuda/sm90/block_lists.h"
#include "attention/cuda/sm90/intervals.h"
#include "attention/cuda/sm90/tiles.h"

namespace headroom::cuda::sm90 {

// The rows that take part, one after the other: places. All rows of a sequence; with a dilated pattern that
// divides evenly, every rate-th of them, from the head's offset; else a list that an earlier kernel wrote.
struct Places {
  const int* rows = nullptr;    // [batch, heads, capacity], or null
  const int* counts = nullptr;  // [batch, heads], with it
  int capacity = 0;
  int heads = 1;  // query heads
  int count = 0;  // without a list
  int rate = 1;

  __device__ int offset(int head) const { return rate == 1 ? 0 : head % rate; }
  __device__ const int* list(int batch, int head) const {
    return rows == nullptr ? nullptr : rows + static_cast<std::int64_t>(batch * heads + head) * capacity;
  }
  __device__ int count_of(int batch, int head) const {
    return counts == nullptr ? count : counts[batch * heads + head];
  }
  __device__ int row(int batch, int head, int place) const {
    return rows == nullptr ? place * rate + offset(head) : list(batch, head)[place];
  }
};

// The order in which blocks take tiles: heads in sections whose rows fit the L2 together; in a section tile
// by tile. Sections differ by one head at most: a last, small one would leave few long tiles for the end.
struct TileOrder {
  int tiles_per_head = 0;
  int heads = 0;  // of all sequences
  int sections = 1;

  [[nodiscard]] __device__ int tiles() const { return tiles_per_head * heads; }
};

// How rows of an output or a gradient are written: in 16 bits; in f32; in f32, added to what is there.
enum class Write : std::uint8_t { rounded, f32, added };

// What all kernels that multiply are launched with.
struct TilesCall {
  CUtensorMap query;
  CUtensorMap key;
  CUtensorMap value;
  Places queries;
  Places keys;
  Intervals seen;  // keys that queries see
  TileOrder order;
  int heads_q = 1;
  int group = 1;     // query heads per key head
  int head_dim = 0;  // what is stored; the rest of a tile's columns is padding
  float scale = 1;
  float softcap = 0;
  int* next_tile = nullptr;  // zero at launch
  Visits visits;             // with block lists
};

struct ForwardCall : TilesCall {
  int rows = 0;  // of a sequence
  const float* sinks = nullptr;
  HeadsView output;
  bool output_is_f32 = false;
  bool resume = false;  // the softmax goes on from the output, which is f32, lse and row_sum
  float* lse = nullptr;
  double* row_sum = nullptr;  // where rows stay open, or null
};

// What backward's kernels read besides.
struct GradientsCall : TilesCall {
  CUtensorMap output_gradient;
  const float* lse = nullptr;          // log2, [batch, heads_q, padded places]; +inf where a row sees nothing
  const float* minus_delta = nullptr;  // the log-sum-exp's own gradient less the sum of O dO, likewise
  int padded_places = 0;
};

// dK and dV, and the sums of dQ where it is not apart. The order is of key tiles, over the parts of key
// heads.
struct BackwardCall : GradientsCall {
  Intervals seen_by;  // queries that see keys
  Waves waves;
  int batch = 1;
  int group_begin = 0;  // the first of a group's query heads that this launch sums over
  int group_heads = 1;  // how many of them it sums over
  int parts = 1;        // blocks that divide these; each writes its own dK and dV, [parts * batch, ...]
  int period = 1;       // query tiles that a window is long; blocks begin at a multiple of it
  float* query_sums = nullptr;  // f32 dQ, tile by tile in the order of the registers that made it
  bool sums_are_open = false;   // they hold what earlier chunks of keys added, at first zeros
  int* turns = nullptr;  // one per query tile, zero at launch: whose turn it is to add; null: query_sums
                         // holds zeros, unless they are open, and anybody adds at any time
  HeadsView key_gradient;
  HeadsView value_gradient;
  Write key_rows = Write::rounded;  // of dK and dV
};

// dQ alone, from blocks of queries.
struct QueriesCall : GradientsCall {
  HeadsView query_gradient;
  Write rows = Write::rounded;
};

struct BeforeCall {
  HeadsView output;
  HeadsView output_gradient;
  Places queries;
  const float* lse = nullptr;           // [batch, heads, rows]
  const float* lse_gradient = nullptr;  // likewise, or null
  float* lse_log2 = nullptr;            // [batch, heads, padded places]
  float* minus_delta = nullptr;
  bool output_is_f32 = false;
  int batch = 0;
  int heads = 0;
  int rows = 0;
  int padded_places = 0;
  int head_dim = 0;
};

struct AfterCall {
  const float* query_sums = nullptr;
  bool sums_are_open = false;
  Places queries;
  Intervals seen;
  HeadsView query_gradient;
  Write rows = Write::rounded;
  int batch = 0;
  int heads = 0;
  int group_begin = 0;  // of every group of heads
  int group_heads = 1;
  int group = 1;
  int query_tiles = 0;
  int head_dim = 0;
  float scale = 1;
  Visits visits;  // with block lists
};

}  // namespace headroom::cuda::sm90
