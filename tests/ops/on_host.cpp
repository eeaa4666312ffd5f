// The tests on a GPU that is none: its kernels run thread by thread on the CPU
// (tests/cuda/kernels_on_host.cpp).
#include "headroom/cpu.h"
#include "ops/cases.h"

namespace headroom {
namespace {

// A CPU that says that it is a GPU, of the compute capability whose kernels run on the host.
class OnHostGpu final : public CpuBackend {
 public:
  OnHostGpu() : CpuBackend(1) {}
  [[nodiscard]] Device device() const override { return {DeviceKind::cuda}; }
  [[nodiscard]] const DeviceDescription& description() const override { return description_; }
  [[nodiscard]] Stream stream(StreamId id) override {
    Stream stream = CpuBackend::stream(id);
    stream.device = &description_;
    return stream;
  }

 private:
  DeviceDescription description_{
      .kind = DeviceKind::cuda, .name = "on host", .cores = 3, .compute_major = 6, .compute_minor = 1};
};

}  // namespace

std::vector<const char*> levels_under_test() {
  return {"on_host"};
}
std::string use_level(std::string_view) {
  return "";
}
std::unique_ptr<Backend> backend_under_test(int) {
  return std::make_unique<OnHostGpu>();
}

}  // namespace headroom
