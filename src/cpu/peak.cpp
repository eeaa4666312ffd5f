#include "cpu/peak.h"

#include <chrono>

#include "cpu/levels.h"
#include "headroom/cpu/thread_pool.h"

namespace headroom {

double measured_peak_flops(const Stream& stream) {
  const SimdLevel level = stream.device->simd;
  const auto loop =
      cpu::at_level(level, run_multiply_adds_avx512, run_multiply_adds_avx2, run_multiply_adds_portable);
  // Pieces of about 0.2 ms that threads take as they come, like a kernel's tiles: a core that is slow for a
  // moment then costs what it costs a kernel.
  constexpr long kSteps = 50'000;
  const std::int64_t pieces = std::int64_t{50} * (stream.pool == nullptr ? 1 : stream.pool->threads());
  const auto start = std::chrono::steady_clock::now();
  parallel_for(stream, pieces, [&](std::int64_t) { loop(kSteps); });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return loop(1) * static_cast<double>(kSteps) * static_cast<double>(pieces) / seconds;
}

}  // namespace headroom
