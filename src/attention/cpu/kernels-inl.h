// Attention forward and backward of one tile, for any vector type (see micro-inl.h for why
// templates).
//
// A query tile is kTileQ rows in strips of kStrip. For each key panel every strip's scores are made in
// registers, become probabilities there and are written once; then every strip multiplies them with V. So the
// panel of K^T and the block of V stay in L1 while all strips use them, and scores never travel.
// A strip knows the extremes of its rows' intervals: panels outside are skipped, panels inside are not
// masked.
#pragma once

#include "attention/cpu/micro-inl.h"

namespace headroom::cpu {

inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2 = 0.693147181f;
inline constexpr float kInfinity = __builtin_inff();
// The row maximum follows only when scores exceed it by 2^8: exact all the same, and after the first panels
// of a row no panel pays for a rescaling. Sums stay far from overflow: 2^8 * seq_k.
inline constexpr float kSlack = 8;

// Extremes over the rows of a strip that see any key; padding rows see whatever the others see.
struct StripBounds {
  std::int32_t min_first = INT32_MAX;
  std::int32_t max_first = 0;
  std::int32_t min_last = INT32_MAX;
  std::int32_t max_last = 0;

  // Keys of the range that some row sees.
  [[nodiscard, gnu::always_inline]] KeySpan clip(KeySpan range) const {
    return {greater(min_first, range.begin), lesser(max_last, range.end)};
  }
  // Whether every row sees every key of [begin, end).
  [[nodiscard, gnu::always_inline]] bool covers(KeySpan range, std::int32_t begin, std::int32_t end) const {
    return greater(max_first, range.begin) <= begin && end <= lesser(min_last, range.end);
  }
};

template <class Vec>
void find_bounds(const std::int32_t* first, const std::int32_t* last, int rows, StripBounds* bounds) {
  for (int strip = 0; strip * kStrip < rows; ++strip) {
    StripBounds b;
    for (int i = strip * kStrip; i < lesser(rows, (strip + 1) * kStrip); ++i) {
      if (first[i] >= last[i]) {
        b.max_first = INT32_MAX;  // an empty row: no panel is inside for this strip
        continue;
      }
      b.min_first = lesser(b.min_first, first[i]);
      b.max_first = greater(b.max_first, first[i]);
      b.min_last = lesser(b.min_last, last[i]);
      b.max_last = greater(b.max_last, last[i]);
    }
    bounds[strip] = b;
  }
}

// The rare part of a strip's scores for one panel: softcap, then -inf outside the rows' intervals.
struct ScoreAdjustment {
  float cap;
  bool partial;
  const std::int32_t* first;  // of the strip
  const std::int32_t* last;
  int rows;  // of the strip that are not padding
  KeySpan range;
  std::int32_t key;  // the panel's first
};

// scores <- cap * tanh(scores) and gate <- 1 - tanh^2, if a gate is wanted; scores <- -inf where masked.
template <class Vec>
[[gnu::noinline]] void adjust_scores(const ScoreAdjustment& how, float* scores, float* gate) {
  for (int r = 0; r < kStrip; ++r) {
    float* row = scores + std::int64_t{r} * kTileK;
    if (how.cap != 0) {
      for (int j = 0; j < kPanel<Vec>; j += Vec::kLanes) {
        const Vec t = tanh(Vec::load(row + j));
        (t * Vec::all(how.cap)).store(row + j);
        if (gate != nullptr) (Vec::all(1.0f) - t * t).store(gate + std::int64_t{r} * kTileK + j);
      }
    }
    if (!how.partial || r >= how.rows) continue;
    const int begin = greater(how.first[r], how.range.begin) - how.key;
    const int end = lesser(how.last[r], how.range.end) - how.key;
    for (int j = 0; j < kPanel<Vec>; j += Vec::kLanes) {
      const int from = lesser(greater(begin - j, 0), Vec::kLanes);
      const int to = lesser(greater(end - j, 0), Vec::kLanes);
      Vec::inside(Vec::load(row + j), from, to, Vec::all(-kInfinity)).store(row + j);
    }
  }
}

// Online softmax of a query tile. Exponents are taken relative to `base`; row sums stay spread over the lanes
// until the end, so that no panel pays for a horizontal sum.
template <class Vec>
struct SoftmaxState {
  float* base;       // [kTileQ]
  float* threshold;  // [kTileQ] base + kSlack; -inf while a row has seen nothing
  float* row_sum;    // [kTileQ][kLanes]
  float* output;     // rows tile
  Columns columns;

  void start(const float* sink) const {
    for (int r = 0; r < kTileQ; ++r) {
      base[r] = sink == nullptr ? 0 : *sink * kLog2E;
      threshold[r] = sink == nullptr ? -kInfinity : base[r] + kSlack;
      Vec::zero().store(row_sum + r * Vec::kLanes);
      if (sink != nullptr) row_sum[r * Vec::kLanes] = 1;  // 2^(sink - base)
    }
    for (int i = 0; i < columns.padded() * kTileQ; i += Vec::kLanes) Vec::zero().store(output + i);
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
      if (threshold[row] != -kInfinity) {
        const Vec factor = exp2(Vec::all(base[row] - row_max));
        float* sums = row_sum + row * Vec::kLanes;
        (Vec::load(sums) * factor).store(sums);
        for (int column = 0; column < columns.count; ++column) {
          float* o = output + (std::int64_t{column} * kTileQ + row) * columns.width;
          for (int j = 0; j < columns.width; j += Vec::kLanes) (Vec::load(o + j) * factor).store(o + j);
        }
        float* p = block + std::int64_t{r} * kTileK;
        for (int j = 0; j < done; j += Vec::kLanes) (Vec::load(p + j) * factor).store(p + j);
      }
      base[row] = row_max;
      threshold[row] = row_max + kSlack;
    }
  }
};

template <class Vec>
std::int64_t forward_scratch(int head_dim) {
  return std::int64_t{2} * kTileQ * columns_of<Vec>(head_dim).padded() + kTileQ * kTileK +
         kTileQ * Vec::kLanes + 2 * kTileQ;
}

template <class Vec, int N>
void forward_columns(const ForwardTile& tile) {
  constexpr int kWidth = N * Vec::kLanes;
  const Columns columns = columns_of<Vec>(tile.head_dim);
  float* query = tile.scratch;
  float* output = query + std::int64_t{kTileQ} * columns.padded();
  float* probabilities = output + std::int64_t{kTileQ} * columns.padded();  // [kTileQ][kTileK]
  float* row_sum = probabilities + kTileQ * kTileK;
  float* base = row_sum + kTileQ * Vec::kLanes;
  const SoftmaxState<Vec> state{base, base + kTileQ, row_sum, output, columns};
  state.start(tile.sink);
  pack_rows<Vec>(tile.query, tile.rows, kTileQ, tile.head_dim, tile.rule.query_factor, query);
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
    strip_times_panel<Vec, N>(s, query + row0 * kWidth, tile.keys + std::int64_t{key} * tile.head_dim,
                              tile.head_dim, next_keys);
    const bool partial = !bounds[strip].covers(range, key, key + kPanel<Vec>);
    if (partial || tile.rule.cap != 0) [[unlikely]] {
      s.store(p, kTileK);
      adjust_scores<Vec>({tile.rule.cap, partial, tile.first + row0, tile.last + row0,
                          lesser(kStrip, tile.rows - row0), range, key},
                         p, nullptr);
      s.load(p, kTileK);
    }
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
    // P <- 2^(S - base); row_sum <- row_sum + P
#pragma GCC unroll 6
    for (int r = 0; r < kStrip; ++r) {
      const Vec shift = Vec::all(state.base[row0 + r]);
      Vec total = Vec::load(row_sum + (row0 + r) * Vec::kLanes);
#pragma GCC unroll 4
      for (int n = 0; n < Vec::kColumns; ++n) {
        const Vec e = exp2(s.c[r][n] - shift);
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
          const KeySpan seen = bounds[strip].clip(range);
          if (key < seen.end && seen.begin < key + kPanel<Vec> && seen.begin < seen.end) {
            make_probabilities(strip, range, key, block);
          }
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
            const auto next_values = ahead_piece<Vec, 2 * kStrips>(
                values + (std::int64_t{kTileK} * columns.count + kTileK * column) * kWidth, kTileK * kWidth,
                (part - block) / (kTileK / 2) * kStrips + strip, kTileK / 2);
            accumulate<Vec, N>(output + (std::int64_t{column} * kTileQ + strip * kStrip) * kWidth,
                               probabilities + std::int64_t{strip} * kStrip * kTileK + skip, kTileK, 1,
                               values + (std::int64_t{column} * kTileK + skip) * kWidth,
                               seen.end - seen.begin, next_values);
          }
        }
      }
    }
  }

  // O <- O / row_sum; lse <- ln(2) * base + ln(row_sum)
  float inverse[kTileQ];
  for (int row = 0; row < tile.rows; ++row) {
    const float total = sum(Vec::load(row_sum + row * Vec::kLanes));
    inverse[row] = total == 0 ? 0 : 1 / total;
    tile.lse[row] = total == 0 ? -kInfinity : kLn2 * base[row] + __builtin_logf(total);
  }
  store_rows<Vec>(output, tile.rows, kTileQ, tile.head_dim, inverse, 1, false, tile.output);
}

// Calls body with the number of vectors of a column panel as a constant.
template <class Vec, class Body>
void with_column_vectors(int head_dim, const Body& body) {
  const int vectors = columns_of<Vec>(head_dim).width / Vec::kLanes;
  if constexpr (Vec::kColumns == 4) {
    if (vectors == 4) return body.template operator()<4>();
    if (vectors == 3) return body.template operator()<3>();
  }
  if (vectors == 2) return body.template operator()<2>();
  body.template operator()<1>();
}

template <class Vec>
void forward(const ForwardTile& tile) {
  with_column_vectors<Vec>(tile.head_dim, [&]<int N>() { forward_columns<Vec, N>(tile); });
}

}  // namespace headroom::cpu

#include "attention/cpu/backward-inl.h"

namespace headroom::cpu {

template <class Vec>
constexpr AttentionKernels make_attention_kernels(const char* name) {
  return {.name = name,
          .panel = kPanel<Vec>,
          .columns = columns_of<Vec>,
          .forward_scratch = forward_scratch<Vec>,
          .backward_scratch = backward_scratch<Vec>,
          .pack_rows = pack_rows<Vec>,
          .pack_transposed = pack_transposed<Vec>,
          .store_rows = store_tile<Vec>,
          .row_statistics = row_statistics<Vec>,
          .forward = forward<Vec>,
          .backward_key_value = backward_key_value<Vec>,
          .backward_query = backward_query<Vec>};
}

}  // namespace headroom::cpu
