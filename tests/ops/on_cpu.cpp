// The tests of the operations on every SIMD level that the CPU has.
#include <cstdlib>

#include "headroom/cpu.h"
#include "ops/cases.h"

namespace headroom {

std::vector<const char*> levels_under_test() {
  return {"portable", "avx2", "avx512"};
}

std::string use_level(std::string_view level) {
  unsetenv("HEADROOM_SIMD");
  const SimdLevel widest = describe_cpu().simd;
  for (const SimdLevel one : {SimdLevel::portable, SimdLevel::avx2, SimdLevel::avx512}) {
    if (name(one) != level) continue;
    if (one > widest) return fmt::format("this CPU has {}", name(widest));
    setenv("HEADROOM_SIMD", std::string(level).c_str(), 1);
  }
  return "";
}

std::unique_ptr<Backend> backend_under_test(int threads) {
  return std::make_unique<CpuBackend>(threads);
}

}  // namespace headroom
