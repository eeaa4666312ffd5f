// Every call of the CUDA runtime is checked.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

namespace headroom {

// Throws where the call failed; running out of device memory is an error of kind memory.
void check_cuda(cudaError_t code, const char* call,
                std::source_location where = std::source_location::current());

}  // namespace headroom
