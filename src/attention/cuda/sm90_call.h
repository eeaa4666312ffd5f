// What the Hopper kernels are launched with.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace headroom::sm90 {

// Rows of a [batch, seq, heads, head_dim] tensor: where they are, in elements.
struct Rows {
  void* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
};

// What a mask leaves a row is one interval of the other side. Without documents it follows from the row; with them it is
// read from a table, [batch, rows], that an earlier kernel wrote. Both ends rise with the row.
struct Intervals {
  const int2* table = nullptr;
  int rows = 0;
  int others = 0;   // rows of the other side
  int offset = 0;   // row r stands at position r + offset of the other side
  int before = 0;   // rows before its own position that it sees
  int after = 0;    // and after it

  __device__ int2 of(int batch, int row) const {
    if (table != nullptr) return table[static_cast<std::int64_t>(batch) * rows + row];
    const int position = row + offset;
    return make_int2(max(position - before, 0), min(position + after + 1, others));
  }
};

// The order in which blocks take tiles: heads in sections whose rows fit the L2 together; in a section tile by tile.
struct TileOrder {
  int tiles_per_head = 0;
  int heads = 0;  // of all sequences
  int heads_per_section = 0;
};

struct ForwardCall {
  CUtensorMap query;
  CUtensorMap key;
  CUtensorMap value;
  Intervals keys;  // that queries see
  TileOrder order;
  int heads_q = 1;
  int group = 1;     // query heads per key head
  int head_dim = 0;  // what is stored; the rest of a tile's columns is padding
  float scale = 1;
  float softcap = 0;
  const float* sinks = nullptr;
  Rows output;
  float* lse = nullptr;
  int* next_tile = nullptr;  // zero at launch
};

struct BackwardCall {
  CUtensorMap query;
  CUtensorMap key;
  CUtensorMap value;
  CUtensorMap output_gradient;
  Intervals keys;     // that queries see
  Intervals queries;  // that see a key
  TileOrder order;    // of key tiles, over key heads
  int heads_q = 1;
  int group = 1;
  int head_dim = 0;
  float scale = 1;
  float softcap = 0;
  const float* lse = nullptr;    // log2, [batch, heads_q, padded rows]; +inf where a row sees nothing
  const float* delta = nullptr;  // sum of O dO, likewise
  int padded_rows = 0;
  float* query_sums = nullptr;  // f32 dQ, tile by tile in the order of the registers that made it; zero at launch
  int* turns = nullptr;         // [batch, heads_q, query tiles], zero at launch: whose turn it is to add; null: anybody's
  Rows key_gradient;
  Rows value_gradient;
  int* next_tile = nullptr;
};

}  // namespace headroom::sm90
