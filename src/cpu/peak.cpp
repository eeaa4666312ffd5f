#include "cpu/peak.h"

#include <algorithm>
#include <chrono>

#include "headroom/cpu/thread_pool.h"

namespace headroom {

double measured_peak_flops(SimdLevel level, ThreadPool& pool) {
  const auto loop = level == SimdLevel::avx512 ? run_multiply_adds_avx512
                    : level == SimdLevel::avx2 ? run_multiply_adds_avx2
                                               : run_multiply_adds_portable;
  constexpr long kSteps =
      200'000;  // some milliseconds: longer than a frequency change, shorter than a neighbour's visit
  double best = 0;
  for (int round = 0; round < 8; ++round) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(pool.threads(), [&](std::int64_t) { loop(kSteps); });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, loop(1) * static_cast<double>(kSteps) * pool.threads() / seconds);
  }
  return best;
}

}  // namespace headroom
