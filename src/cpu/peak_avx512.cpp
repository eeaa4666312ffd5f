#include "cpu/peak-inl.h"
#include "cpu/peak.h"

namespace headroom {

double run_multiply_adds_avx512(long steps) {
  using V = float __attribute__((vector_size(64)));
  return run_multiply_adds<V, 24>(steps);
}

}  // namespace headroom
