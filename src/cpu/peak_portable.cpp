#include "cpu/peak-inl.h"
#include "cpu/peak.h"

namespace headroom {

double run_multiply_adds_portable(long steps) {
  using V = float __attribute__((vector_size(16)));
  return run_multiply_adds<V, 12>(steps);
}

}  // namespace headroom
