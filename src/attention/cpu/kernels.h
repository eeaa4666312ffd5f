// The attention kernels of one instruction set: packing, a query tile forward, a (query tile, key tile) pair
// backward. One table of functions per instruction set, chosen at run time. "rows" and "transposed" are the
// packed formats of cpu/packed.h.
#pragma once

#include <cstdint>

#include "cpu/packed.h"
#include "headroom/core/device.h"

namespace headroom::cpu {

// Query rows of a tile at most. At 96 rows a K^T panel is fetched once per 16 strips
// (docs/kernels/attention.md: 48, 96, 192).
inline constexpr int kTileQ = 96;
inline constexpr int kStrips = kTileQ / kStrip;
// Keys of a tile: the least common multiple of the strip and the widest panel (64), because backward reads
// the same scores in panels along the keys and in strips of keys.
inline constexpr int kTileK = 192;
inline constexpr std::int64_t kTileScores = std::int64_t{kTileQ} * kTileK;

// Keys [begin, end).
struct KeySpan {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

inline constexpr float kLog2E = 1.44269504f;

// How scores q . k become exponents of 2: factor * s; with a softcap s <- cap * tanh(slope * s) first.
struct ScoreRule {
  float factor = 1;  // log2(e) * scale, or 1 where there is a softcap
  float slope = 0;   // scale / softcap
  float cap = 0;     // log2(e) * softcap; 0: off
};

struct ForwardTile {
  RowsView query;       // [rows, head_dim]
  const float* keys;    // transposed
  const float* values;  // rows, in tiles of kTileK
  int rows;             // 1 to kTileQ
  int head_dim;
  const std::int32_t* first;  // [rows]; row i sees keys [first[i], last[i]) of those in the ranges
  const std::int32_t* last;
  const KeySpan* ranges;  // rising, disjoint
  std::int64_t range_count;
  ScoreRule rule;
  const float* sink;  // one logit, or null
  bool resume;        // the softmax goes on from the output, lse and row_sum that are there
  float* scratch;     // forward_scratch floats
  RowsView output;    // [rows, head_dim]
  float* lse;         // of row i at output.index(i)
  double* row_sum;    // likewise, where rows stay open (headroom/attention.h); null: rows are closed
};

// One query tile against one key tile. `keys`, `keys_transposed` and `values_transposed` start at the key
// tile.
struct BackwardTile {
  const float* query;            // rows
  const float* output_gradient;  // rows
  const float* row_shift;        // [kTileQ] -log2(e) * lse; -inf where a row sees nothing or is padding
  const float* row_dot;          // [kTileQ] dO . O - dLSE
  const float* keys;             // rows
  const float* keys_transposed;
  const float* values_transposed;
  int rows;
  int head_dim;
  const std::int32_t* first;  // [rows], absolute
  const std::int32_t* last;
  KeySpan range;          // absolute, inside the key tile
  std::int32_t tile_key;  // the key tile's first key
  ScoreRule rule;
  float* scratch;         // kBackwardScratch floats
  float* key_gradient;    // rows, accumulated
  float* value_gradient;  // rows, accumulated
  float* query_gradient;  // rows, accumulated
};

// What backward needs of a query tile before any key tile.
struct RowStatistics {
  RowsView output;
  RowsView output_gradient;
  const float* lse;           // of row i at output_gradient.index(i)
  const float* lse_gradient;  // likewise, or null
  const float* sink;          // one logit, or null
  int rows;
  int head_dim;
  float* row_shift;      // [kTileQ]
  float* row_dot;        // [kTileQ]
  float* sink_gradient;  // this tile's part of dSink; written where there is a sink
};

struct AttentionKernels {
  // count <= tile_rows rows of src into one tile; the tile is filled up with zeros.
  void (*pack_rows)(const RowsView& src, int count, int tile_rows, int head_dim, float* dst);
  // count rows of src into ceil(count / panel) panels; the last one is filled up with zeros.
  void (*pack_transposed)(const RowsView& src, int count, int head_dim, float* dst);
  // The first count rows of one tile, times factor, into dst; or added to it, which is f32 then.
  void (*store_rows)(const float* tile, int count, int tile_rows, int head_dim, float factor, bool add,
                     const RowsView& dst);
  void (*row_statistics)(const RowStatistics& tile);
  void (*forward)(const ForwardTile& tile);
  // dK and dV of the key tile += this query tile's part; leaves dS in the scratch for backward_query.
  void (*backward_key_value)(const BackwardTile& tile);
  // dQ of the query tile += this key tile's part.
  void (*backward_query)(const BackwardTile& tile);
};

// What a tile needs to work in, in floats.
[[nodiscard]] inline std::int64_t forward_scratch(VectorShape vectors, int head_dim) {
  const std::int64_t padded = Columns::of(head_dim, vectors).padded();
  return padded * 2 * kTileQ + kTileScores + kTileQ * (std::int64_t{vectors.lanes} + 2);
}
inline constexpr std::int64_t kBackwardScratch = 2 * kTileScores;

[[nodiscard]] const AttentionKernels& attention_kernels_portable();
[[nodiscard]] const AttentionKernels& attention_kernels_avx2();
[[nodiscard]] const AttentionKernels& attention_kernels_avx512();

// Those of a level; the description of a CPU says which it has.
[[nodiscard]] const AttentionKernels& attention_kernels(SimdLevel level);

}  // namespace headroom::cpu
