// Attention forward of one query tile, for any vector type.
//
// A query tile is kTileQ rows in strips of kStrip. For each key panel every strip's scores are made in
// registers, become probabilities there and are written once; then every strip multiplies them with V. So the
// panel of K^T and the block of V stay in L1 while all strips use them, and scores never travel.
#pragma once

#include "attention/cpu/strips-inl.h"

namespace headroom::cpu {

// The row maximum follows only when scores exceed it by 2^8: exact all the same, and after the first panels
// of a row no panel pays for a rescaling. Sums stay far from overflow: 2^8 * seq_k.
inline constexpr float kSlack = 8;

// Online softmax of a query tile. Exponents are taken relative to a row's base; row sums stay spread over the
// lanes until the end, so that no panel pays for a horizontal sum.
template <class Vec>
struct SoftmaxState {
  float factor;      // from scores to exponents
  float* shift;      // [kTileQ] minus the base, an exponent
  float* threshold;  // [kTileQ] the score that is kSlack over the base; -inf while a row has seen nothing
  float* row_sum;    // [kTileQ][kLanes] of the keys of this call
  double* carried;   // [kTileQ] the sum before them
  float* output;     // rows tile
  Columns columns;

  // What a row has seen before its first key: nothing, a sink, or the result it goes on from. A sink and a
  // closed result are one member of the softmax each, with their logit or lse; an open one goes on exactly
  // where it stopped.
  void start(const ForwardTile& tile) const {
    for (int r = 0; r < kTileQ; ++r) {
      float before = tile.sink == nullptr ? -kInfinity : *tile.sink;
      double open = 0;
      if (tile.resume && r < tile.rows) {
        const std::int64_t index = tile.output.index(r);
        before = tile.lse[index];
        if (tile.row_sum != nullptr) open = tile.row_sum[index];
      }
      const bool nothing = before == -kInfinity;
      shift[r] = nothing ? 0 : open > 0 ? -before : -before * kLog2E;
      threshold[r] = nothing ? -kInfinity : (kSlack - shift[r]) / factor;
      carried[r] = nothing ? 0 : open > 0 ? open : 1;
      Vec::zero().store(row_sum + std::int64_t{r} * Vec::kLanes);
    }
    pack_rows<Vec>(tile.output, tile.resume ? tile.rows : 0, kTileQ, tile.head_dim, output);
  }
  // Such a row keeps what it goes on from, bit by bit.
  static bool sees_nothing(const ForwardTile& tile, int r) { return tile.first[r] >= tile.last[r]; }
  void scale_output(int row, Vec by) const {
    for (int column = 0; column < columns.count; ++column) {
      float* o = output + (std::int64_t{column} * kTileQ + row) * columns.width;
      for (int j = 0; j < columns.width; j += Vec::kLanes) (Vec::load(o + j) * by).store(o + j);
    }
  }

  // Moves the base of the strip's rows whose scores passed the threshold; what was summed so far follows: row
  // sums, outputs, and the `done` probabilities of this block that have not met V yet.
  [[gnu::noinline]] void raise(int row0, const float* scores, float* block, int done) const {
    for (int r = 0; r < kStrip; ++r) {
      const int row = row0 + r;
      Vec most = Vec::load(scores + std::int64_t{r} * kTileK);
      for (int j = Vec::kLanes; j < kPanel<Vec>; j += Vec::kLanes) {
        most = larger(most, Vec::load(scores + std::int64_t{r} * kTileK + j));
      }
      const float row_max = maximum(most);
      if (!(row_max > threshold[row])) continue;
      const float new_shift = -row_max * factor;
      if (threshold[row] != -kInfinity) {
        const Vec decay = exp2(Vec::all(new_shift - shift[row]));
        float* sums = row_sum + row * Vec::kLanes;
        (Vec::load(sums) * decay).store(sums);
        carried[row] *= __builtin_exp2(double{new_shift - shift[row]});
        scale_output(row, decay);
        float* p = block + std::int64_t{r} * kTileK;
        for (int j = 0; j < done; j += Vec::kLanes) (Vec::load(p + j) * decay).store(p + j);
      }
      shift[row] = new_shift;
      threshold[row] = row_max + kSlack / factor;
    }
  }
};

template <class Vec, int N>
void forward_columns(const ForwardTile& tile) {
  constexpr std::int64_t kWidth = N * Vec::kLanes;
  const Columns columns = columns_of<Vec>(tile.head_dim);
  float* query = tile.scratch;
  float* output = query + std::int64_t{kTileQ} * columns.padded();
  float* probabilities = output + std::int64_t{kTileQ} * columns.padded();  // [kTileQ][kTileK]
  float* row_sum = probabilities + kTileScores;
  float* shift = row_sum + kTileQ * Vec::kLanes;
  double carried[kTileQ];
  const SoftmaxState<Vec> state{tile.rule.factor, shift, shift + kTileQ, row_sum, carried, output, columns};
  state.start(tile);
  pack_rows<Vec>(tile.query, tile.rows, kTileQ, tile.head_dim, query);
  StripBounds bounds[kStrips];
  find_bounds<Vec>(tile.first, tile.last, tile.rows, bounds);
  const int strips = (tile.rows + kStrip - 1) / kStrip;

  const auto make_probabilities = [&](int strip, KeySpan range, std::int32_t key, std::int32_t block) {
    const int row0 = strip * kStrip;
    float* strip_block = probabilities + std::int64_t{row0} * kTileK;
    float* p = strip_block + (key - block);
    // S <- Q K^T, while this strip's share of the next block's K^T comes in
    const auto next_keys = ahead_piece<Vec, kTileK / kPanel<Vec> * kStrips>(
        tile.keys + std::int64_t{block + kTileK} * tile.head_dim, kTileK * tile.head_dim,
        (key - block) / kPanel<Vec> * kStrips + strip, tile.head_dim);
    Accumulators<Vec, Vec::kColumns> s;
    strip_times_panel<Vec, N>(s, query + row0 * kWidth, kTileQ, tile.keys + std::int64_t{key} * tile.head_dim,
                              tile.head_dim, next_keys);
    const bool partial = !bounds[strip].covers(range, key, key + kPanel<Vec>);
    if (tile.rule.cap != 0) [[unlikely]] {
      s.store(p, kTileK);
      cap_scores<Vec>(tile.rule, p, nullptr);
      s.load(p, kTileK);
    }
    if (partial) [[unlikely]]
      mask_scores(s, tile.first + row0, tile.last + row0, tile.rows - row0, range, key);
    bool above = false;
#pragma GCC unroll 6
    for (int r = 0; r < kStrip; ++r) {
      Vec most = s.c[r][0];
#pragma GCC unroll 4
      for (int n = 1; n < Vec::kColumns; ++n) most = larger(most, s.c[r][n]);
      above |= any_above(most, Vec::all(state.threshold[row0 + r]));
    }
    if (above) [[unlikely]] {
      s.store(p, kTileK);
      state.raise(row0, p, strip_block, key - block);
      s.load(p, kTileK);
    }
    // P <- 2^(factor * S - base); row_sum <- row_sum + P
    const Vec factor = Vec::all(tile.rule.factor);
#pragma GCC unroll 6
    for (int r = 0; r < kStrip; ++r) {
      const Vec minus_base = Vec::all(shift[row0 + r]);
      Vec total = Vec::load(row_sum + (row0 + r) * Vec::kLanes);
#pragma GCC unroll 4
      for (int n = 0; n < Vec::kColumns; ++n) {
        const Vec e = exp2(fma(s.c[r][n], factor, minus_base));
        total = total + e;
        e.store(p + std::int64_t{r} * kTileK + n * Vec::kLanes);
      }
      total.store(row_sum + (row0 + r) * Vec::kLanes);
    }
  };

  for (std::int64_t i = 0; i < tile.range_count; ++i) {
    const KeySpan whole = tile.ranges[i];
    for (std::int32_t block = whole.begin / kTileK * kTileK; block < whole.end; block += kTileK) {
      const KeySpan range{greater(whole.begin, block), lesser(whole.end, block + kTileK)};
      const std::int32_t start = block + (range.begin - block) / kPanel<Vec> * kPanel<Vec>;
      for (std::int32_t key = start; key < range.end; key += kPanel<Vec>) {
        for (int strip = 0; strip < strips; ++strip) {
          if (bounds[strip].sees(range, key, kPanel<Vec>)) make_probabilities(strip, range, key, block);
        }
      }
      // O <- O + P V, half a block at a time so that V's part stays in L1, while the next block's V comes in
      const float* values = tile.values + std::int64_t{block} * columns.padded();
      for (int column = 0; column < columns.count; ++column) {
        for (std::int32_t part = block; part < range.end; part += kTileK / 2) {
          for (int strip = 0; strip < strips; ++strip) {
            const KeySpan seen =
                bounds[strip].clip({greater(range.begin, part), lesser(range.end, part + kTileK / 2)});
            if (seen.begin >= seen.end) continue;
            const int skip = seen.begin - block;
            const std::int64_t row0 = std::int64_t{strip} * kStrip;
            const auto next_values = ahead_piece<Vec, 2 * kStrips>(
                values + (std::int64_t{columns.count} + column) * (kTileK * kWidth), kTileK * kWidth,
                (part - block) / (kTileK / 2) * kStrips + strip, kTileK / 2);
            accumulate<Vec, N>(output + (std::int64_t{column} * kTileQ + row0) * kWidth,
                               probabilities + row0 * kTileK + skip, kTileK, 1,
                               values + (std::int64_t{column} * kTileK + skip) * kWidth,
                               seen.end - seen.begin, next_values);
          }
        }
      }
    }
  }

  // O <- O / row_sum; lse <- ln(2) * base + ln(row_sum); or, where rows stay open, row_sum and base
  float inverse[kTileQ];
  for (int row = 0; row < tile.rows; ++row) {
    const double total = carried[row] + double{sum(Vec::load(row_sum + row * Vec::kLanes))};
    const bool open = tile.row_sum != nullptr;
    inverse[row] = open ? 1 : total == 0 ? 0 : 1 / static_cast<float>(total);
    if (tile.resume && state.sees_nothing(tile, row)) continue;
    const std::int64_t index = tile.output.index(row);
    if (open) tile.row_sum[index] = total;
    if (total == 0) {
      tile.lse[index] = -kInfinity;
    } else {
      tile.lse[index] = open ? -shift[row] : __builtin_logf(static_cast<float>(total)) - kLn2 * shift[row];
    }
  }
  store_rows<Vec>(output, tile.rows, kTileQ, tile.head_dim, inverse, 1, false, tile.output);
}

template <class Vec>
void forward(const ForwardTile& tile) {
  with_column_vectors<Vec>(tile.head_dim, [&]<int N>() { forward_columns<Vec, N>(tile); });
}

}  // namespace headroom::cpu
