// Attention backward of one (query tile, key tile) pair: five products, with the probabilities made again
// from the log-sum-exp.
//
//   P  <- 2^(factor * S + shift)  panels along the keys, as in forward
//   dS <- P * gate * (dO V^T - row_dot)
//   dV <- dV + P^T dO             strips of keys: P^T is read from P, six neighbours at a time
//   dK <- dK + dS^T Q
//   dQ <- dQ + dS K               apart, because the caller orders these additions
#pragma once

#include "attention/cpu/strips-inl.h"

namespace headroom::cpu {

// dO . O of one row.
template <class Vec>
float row_dot(const RowStatistics& tile, int row) {
  Vec dot = Vec::zero();
  // O may be an f32 partial while dO is in the problem's dtype.
  with_dtype<Vec>(tile.output.dtype, [&]<DType kOutput>() {
    with_dtype<Vec>(tile.output_gradient.dtype, [&]<DType kGradient>() {
      const auto* o =
          static_cast<const typename Element<kOutput>::Stored*>(tile.output.data) + tile.output.offset(row);
      const auto* g = static_cast<const typename Element<kGradient>::Stored*>(tile.output_gradient.data) +
                      tile.output_gradient.offset(row);
      for (int column = 0; column < tile.head_dim; column += Vec::kLanes) {
        const int valid = tile.head_dim - column;
        dot = fma(load_elements<Vec, kOutput>(o + column, valid),
                  load_elements<Vec, kGradient>(g + column, valid), dot);
      }
    });
  });
  return sum(dot);
}

template <class Vec>
void row_statistics(const RowStatistics& tile) {
  float sink_gradient = 0;
  for (int row = 0; row < kTileQ; ++row) {
    tile.row_shift[row] = -kInfinity;
    tile.row_dot[row] = 0;
    if (row >= tile.rows) continue;
    const std::int64_t index = tile.output_gradient.index(row);
    const float lse = tile.lse[index];
    if (lse == -kInfinity) continue;
    tile.row_shift[row] = -lse * kLog2E;
    // row_dot <- dO . O - dLSE
    tile.row_dot[row] =
        row_dot<Vec>(tile, row) - (tile.lse_gradient == nullptr ? 0 : tile.lse_gradient[index]);
    // dSink <- dSink - P_sink * row_dot
    if (tile.sink != nullptr) sink_gradient -= __builtin_expf(*tile.sink - lse) * tile.row_dot[row];
  }
  if (tile.sink != nullptr) *tile.sink_gradient = sink_gradient;
}

template <class Vec, int N>
void backward_key_value_columns(const BackwardTile& tile) {
  constexpr std::int64_t kWidth = N * Vec::kLanes;
  const Columns columns = columns_of<Vec>(tile.head_dim);
  float* probabilities = tile.scratch;                 // [kTileQ][kTileK]
  float* score_gradient = tile.scratch + kTileScores;  // [kTileQ][kTileK]
  StripBounds bounds[kStrips];
  find_bounds<Vec>(tile.first, tile.last, tile.rows, bounds);
  const int strips = (tile.rows + kStrip - 1) / kStrip;

  // The next query tile follows in memory; it comes in during the products.
  const std::int64_t query_floats = kTileQ * columns.padded();
  const auto next_piece = [&](const float* rows, int offset, int strip) {
    return ahead_piece<Vec, kTileK / kPanel<Vec> * kStrips>(
        rows + query_floats, query_floats, offset / kPanel<Vec> * kStrips + strip, tile.head_dim);
  };

  for (int offset = 0; offset < kTileK; offset += kPanel<Vec>) {
    const std::int32_t key = tile.tile_key + offset;
    const auto visible = [&](int strip) { return bounds[strip].sees(tile.range, key, kPanel<Vec>); };
    for (int strip = 0; strip < strips; ++strip) {
      const int row0 = strip * kStrip;
      float* p = probabilities + std::int64_t{row0} * kTileK + offset;
      float* gate = score_gradient + std::int64_t{row0} * kTileK + offset;
      Accumulators<Vec, Vec::kColumns> s;
      if (!visible(strip)) {
        s.clear();
        s.store(p, kTileK);
        s.store(gate, kTileK);
        continue;
      }
      // S <- Q K^T
      strip_times_panel<Vec, N>(s, tile.query + row0 * kWidth, kTileQ,
                                tile.keys_transposed + std::int64_t{offset} * tile.head_dim, tile.head_dim,
                                next_piece(tile.query, offset, strip));
      const bool partial = !bounds[strip].covers(tile.range, key, key + kPanel<Vec>);
      if (tile.rule.cap != 0) [[unlikely]] {
        s.store(p, kTileK);
        cap_scores<Vec>(tile.rule, p, gate);
        s.load(p, kTileK);
      }
      if (partial) [[unlikely]]
        mask_scores(s, tile.first + row0, tile.last + row0, tile.rows - row0, tile.range, key);
      // P <- 2^(factor * S + shift)
      const Vec factor = Vec::all(tile.rule.factor);
#pragma GCC unroll 6
      for (int r = 0; r < kStrip; ++r) {
        const Vec shift = Vec::all(tile.row_shift[row0 + r]);
#pragma GCC unroll 4
        for (int n = 0; n < Vec::kColumns; ++n) {
          exp2(fma(s.c[r][n], factor, shift)).store(p + std::int64_t{r} * kTileK + n * Vec::kLanes);
        }
      }
    }
    for (int strip = 0; strip < strips; ++strip) {
      if (!visible(strip)) continue;
      const int row0 = strip * kStrip;
      const float* p = probabilities + std::int64_t{row0} * kTileK + offset;
      float* ds = score_gradient + std::int64_t{row0} * kTileK + offset;
      // dP <- dO V^T
      Accumulators<Vec, Vec::kColumns> s;
      strip_times_panel<Vec, N>(s, tile.output_gradient + row0 * kWidth, kTileQ,
                                tile.values_transposed + std::int64_t{offset} * tile.head_dim, tile.head_dim,
                                next_piece(tile.output_gradient, offset, strip));
      // dS <- P * (dP - row_dot), times the gate that the softcap left there
#pragma GCC unroll 6
      for (int r = 0; r < kStrip; ++r) {
        const Vec dot = Vec::all(tile.row_dot[row0 + r]);
#pragma GCC unroll 4
        for (int n = 0; n < Vec::kColumns; ++n) {
          const std::int64_t at = std::int64_t{r} * kTileK + n * Vec::kLanes;
          s.c[r][n] = Vec::load(p + at) * (s.c[r][n] - dot);
          if (tile.rule.cap != 0) [[unlikely]]
            s.c[r][n] = s.c[r][n] * Vec::load(ds + at);
        }
      }
      s.store(ds, kTileK);
    }
  }

  // For each strip of keys the query strips [begin, end) that see one of them.
  constexpr int kKeyStrips = kTileK / kStrip;
  int begin[kKeyStrips];
  int end[kKeyStrips];
  for (int i = 0; i < kKeyStrips; ++i) {
    const std::int32_t key = tile.tile_key + i * kStrip;
    begin[i] = strips;
    end[i] = 0;
    for (int strip = 0; strip < strips; ++strip) {
      if (!bounds[strip].sees(tile.range, key, kStrip)) continue;
      begin[i] = lesser(begin[i], strip);
      end[i] = strip + 1;
    }
  }
  const auto accumulate_keys = [&](float* gradient, const float* scores, const float* rows,
                                   const float* next) {
    for (int column = 0; column < columns.count; ++column) {
      for (int i = 0; i < kKeyStrips; ++i) {
        if (begin[i] >= end[i]) continue;
        const int row0 = begin[i] * kStrip;
        const std::int64_t key0 = std::int64_t{i} * kStrip;
        accumulate<Vec, N>(
            gradient + (std::int64_t{column} * kTileK + key0) * kWidth,
            scores + std::int64_t{row0} * kTileK + key0, 1, kTileK,
            rows + (std::int64_t{column} * kTileQ + row0) * kWidth, (end[i] - begin[i]) * kStrip,
            ahead_piece<Vec, kKeyStrips>(next + column * (kTileQ * kWidth), kTileQ * kWidth, i, kTileQ));
      }
    }
  };
  accumulate_keys(tile.value_gradient, probabilities, tile.output_gradient,
                  tile.query_gradient);  // dV <- dV + P^T dO
  accumulate_keys(tile.key_gradient, score_gradient, tile.query,
                  tile.query_gradient + query_floats);  // dK <- dK + dS^T Q
}

template <class Vec, int N>
void backward_query_columns(const BackwardTile& tile) {
  constexpr std::int64_t kWidth = N * Vec::kLanes;
  const Columns columns = columns_of<Vec>(tile.head_dim);
  const float* score_gradient = tile.scratch + kTileScores;
  StripBounds bounds[kStrips];
  find_bounds<Vec>(tile.first, tile.last, tile.rows, bounds);
  const int strips = (tile.rows + kStrip - 1) / kStrip;
  // dQ <- dQ + dS K, half a key tile at a time so that K's part stays in L1
  for (int column = 0; column < columns.count; ++column) {
    for (int part = 0; part < kTileK; part += kTileK / 2) {
      const std::int32_t key = tile.tile_key + part;
      const KeySpan half{greater(tile.range.begin, key), lesser(tile.range.end, key + kTileK / 2)};
      for (int strip = 0; strip < strips; ++strip) {
        const KeySpan seen = bounds[strip].clip(half);
        if (seen.begin >= seen.end) continue;
        const int skip = seen.begin - tile.tile_key;
        const std::int64_t row0 = std::int64_t{strip} * kStrip;
        accumulate<Vec, N>(tile.query_gradient + (std::int64_t{column} * kTileQ + row0) * kWidth,
                           score_gradient + row0 * kTileK + skip, kTileK, 1,
                           tile.keys + (std::int64_t{column} * kTileK + skip) * kWidth, seen.end - seen.begin,
                           AheadOf<Vec>{tile.query_gradient, 0});
      }
    }
  }
}

template <class Vec>
void backward_key_value(const BackwardTile& tile) {
  with_column_vectors<Vec>(tile.head_dim, [&]<int N>() { backward_key_value_columns<Vec, N>(tile); });
}

template <class Vec>
void backward_query(const BackwardTile& tile) {
  with_column_vectors<Vec>(tile.head_dim, [&]<int N>() { backward_query_columns<Vec, N>(tile); });
}

}  // namespace headroom::cpu
