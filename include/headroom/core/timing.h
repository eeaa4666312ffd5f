// Measuring: the seconds of a call, and the median of several.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace headroom {

template <class Body>
double seconds_of(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

[[nodiscard]] inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace headroom
