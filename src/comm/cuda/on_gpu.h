// Which GPU is current for the calls of a thread.
#pragma once

#include "cuda/check.h"

namespace headroom::cuda {

inline int current_gpu() {
  int gpu = 0;
  check_cuda(cudaGetDevice(&gpu), "cudaGetDevice");
  return gpu;
}

// A GPU is current as long as this lives; then the one before it is.
class OnGpu {
 public:
  explicit OnGpu(int gpu) : before_(current_gpu()), gpu_(gpu) {
    if (before_ != gpu_) check_cuda(cudaSetDevice(gpu_), "cudaSetDevice");
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  ~OnGpu() {
    if (before_ != gpu_) cudaSetDevice(before_);
  }

 private:
  int before_;
  int gpu_;
};

}  // namespace headroom::cuda
