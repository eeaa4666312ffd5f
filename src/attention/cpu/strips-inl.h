// What forward and backward share: a strip of rows knows the extremes of its rows' intervals, so panels
// outside are skipped and panels inside are not masked.
#pragma once

#include "attention/cpu/kernels.h"
#include "cpu/micro-inl.h"

namespace headroom::cpu {

inline constexpr float kLog2E = 1.44269504f;
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
  ScoreRule rule;
  bool partial;
  const std::int32_t* first;  // of the strip
  const std::int32_t* last;
  int rows;  // of the strip that are not padding
  KeySpan range;
  std::int32_t key;  // the panel's first
};

// scores <- cap * tanh(slope * scores) and gate <- 1 - tanh^2, if a gate is wanted; scores <- -inf where masked.
template <class Vec>
[[gnu::noinline]] void adjust_scores(const ScoreAdjustment& how, float* scores, float* gate) {
  for (int r = 0; r < kStrip; ++r) {
    float* row = scores + std::int64_t{r} * kTileK;
    if (how.rule.cap != 0) {
      for (int j = 0; j < kPanel<Vec>; j += Vec::kLanes) {
        const Vec t = tanh(Vec::load(row + j) * Vec::all(how.rule.slope));
        (t * Vec::all(how.rule.cap)).store(row + j);
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
