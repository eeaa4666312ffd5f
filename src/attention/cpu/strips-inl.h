// What forward and backward share: a strip of rows knows the extremes of its rows' intervals, so panels
// outside are skipped and panels inside are not masked.
#pragma once

#include "attention/cpu/kernels.h"
#include "cpu/micro-inl.h"

namespace headroom::cpu {

inline constexpr float kLn2 = 0.693147181f;
inline constexpr float kInfinity = __builtin_inff();
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
  // Whether some row sees one of the `count` keys from `key` on.
  [[nodiscard, gnu::always_inline]] bool sees(KeySpan range, std::int32_t key, int count) const {
    const KeySpan seen = clip(range);
    return key < seen.end && seen.begin < key + count && seen.begin < seen.end;
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

// s <- -inf outside the rows' intervals. `first`, `last` are of the strip's `rows` rows that are not padding,
// `key` is the panel's first key.
template <class Vec>
[[gnu::always_inline]] inline void mask_scores(Accumulators<Vec, Vec::kColumns>& s, const std::int32_t* first,
                                               const std::int32_t* last, int rows, KeySpan range,
                                               std::int32_t key) {
#pragma GCC unroll 6
  for (int r = 0; r < kStrip; ++r) {
    if (r >= rows) break;
    const int begin = greater(first[r], range.begin) - key;
    const int end = lesser(last[r], range.end) - key;
#pragma GCC unroll 4
    for (int n = 0; n < Vec::kColumns; ++n) {
      const int from = lesser(greater(begin - n * Vec::kLanes, 0), Vec::kLanes);
      const int to = lesser(greater(end - n * Vec::kLanes, 0), Vec::kLanes);
      s.c[r][n] = Vec::inside(s.c[r][n], from, to, Vec::all(-kInfinity));
    }
  }
}

// scores <- cap * tanh(slope * scores), a strip of them kTileK apart; gate <- 1 - tanh^2, if one is wanted.
template <class Vec>
[[gnu::noinline]] void cap_scores(const ScoreRule& rule, float* scores, float* gate) {
  for (int r = 0; r < kStrip; ++r) {
    for (int j = 0; j < kPanel<Vec>; j += Vec::kLanes) {
      const std::int64_t at = std::int64_t{r} * kTileK + j;
      const Vec t = tanh(Vec::load(scores + at) * Vec::all(rule.slope));
      (t * Vec::all(rule.cap)).store(scores + at);
      if (gate != nullptr) (Vec::all(1.0f) - t * t).store(gate + at);
    }
  }
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

}  // namespace headroom::cpu
