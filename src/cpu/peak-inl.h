// Multiply-adds per second of one core: as many independent chains as hide the latency. A template over a GCC
// vector, so that each instruction set instantiates its own.
#pragma once

namespace headroom {

template <class V, int kChains>
[[gnu::noinline]] double run_multiply_adds(long steps) {
  V sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = V{} + static_cast<float>(i);
  V a = V{} + 0.999F;
  V b = V{} + 0.001F;
  for (long s = 0; s < steps; ++s) {
    asm volatile("" : "+x"(a), "+x"(b));  // not constants, or the loop would be computed away
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sum[i] = sum[i] * a + b;
  }
  V total{};
  for (int i = 0; i < kChains; ++i) total += sum[i];
  asm volatile("" ::"x"(total));
  constexpr auto kLanes = static_cast<long>(sizeof(V) / sizeof(float));
  return static_cast<double>(2L * kChains * kLanes * steps);
}

}  // namespace headroom
