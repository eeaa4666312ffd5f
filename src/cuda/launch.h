// One way to launch, checked. Kernels that go through it can also be run on the host, thread by thread
// (tests/cuda/on_host.h), which is how their logic is tested without a GPU.
#pragma once

#include <cstdint>
#include <limits>

#include "cuda/check.h"
#include "headroom/core/error.h"
#include "headroom/core/stream.h"

namespace headroom::cuda {

// A kernel that waits for those before it by itself (ptx::wait_for_kernels_before) may begin before they have
// ended: once all of their blocks have said so (ptx::let_next_kernel_begin).
enum class Begin : std::uint8_t { after, early };

template <Begin kBegin = Begin::after, class... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), std::int64_t blocks, int threads,
            std::int64_t shared_bytes, const Stream& stream, const Parameters&... arguments) {
  if (blocks == 0) return;
  check(blocks <= std::numeric_limits<std::int32_t>::max(), "{} takes {} blocks, a launch has up to {}", name,
        blocks, std::numeric_limits<std::int32_t>::max());
  constexpr std::int64_t kWithoutAsking = 48 << 10;  // more shared memory has to be asked for
  if (shared_bytes > kWithoutAsking) {
    check_cuda(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
        name);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(blocks);
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream.native);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = kBegin == Begin::early ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

inline void set_bytes(void* data, std::uint8_t value, std::int64_t bytes, const Stream& stream) {
  check_cuda(
      cudaMemsetAsync(data, value, static_cast<std::size_t>(bytes), static_cast<cudaStream_t>(stream.native)),
      "cudaMemsetAsync");
}

}  // namespace headroom::cuda
