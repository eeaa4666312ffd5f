// The tests of the operations on a GPU.
#include "cuda/cuda_backend.h"
#include "ops/cases.h"

namespace headroom {

std::vector<const char*> levels_under_test() {
  return {"cuda"};
}
std::string use_level(std::string_view) {
  const CudaCount count = cuda_device_count();
  return count.devices == 0 ? "no GPU: " + count.reason : "";
}
std::unique_ptr<Backend> backend_under_test(int) {
  return std::make_unique<CudaBackend>(0);
}

}  // namespace headroom
