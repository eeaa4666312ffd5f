// What a mask leaves the places of one side is one interval of the other side's places, and both ends rise
// with the place: the keys that queries see, and the queries that see keys. Pure functions, the same on host
// and device, held against MaskView::interval by a host test.
#pragma once

#include <cstdint>

#include "attention/cuda/tiles.h"

namespace headroom::cuda::sm90 {

// Without documents intervals follow from the place; else they are read from tables. Ends may be anywhere
// outside the other side where a place sees nothing; a begin is never below 0, an end never above `others`.
struct Intervals {
  const int* first = nullptr;  // [batch, or batch and heads, capacity]
  const int* last = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  int others = 0;       // places of the other side
  int begin_shift = 0;  // place p sees from p + begin_shift on
  int end_shift = 0;    // and up to p + end_shift
  int segment = 0;      // seen from inside the same so many places only; 0: no such limit

  [[nodiscard]] HEADROOM_HOST_DEVICE
  Range of(int batch, int head, int place) const {
    if (first != nullptr) {
      const std::int64_t at = batch * batch_stride + head * head_stride + place;
      return Range{first[at], last[at]};
    }
    int begin = most(place + begin_shift, 0);
    int end = least(place + end_shift, others);
    if (segment > 0) {
      const int start = place / segment * segment;
      begin = most(begin, start);
      end = least(end, start + segment);
    }
    return Range{begin, end};
  }
};

}  // namespace headroom::cuda::sm90
