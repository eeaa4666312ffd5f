// A test that needs a GPU: it skips, and says so, where there is none.
#pragma once

#include <gtest/gtest.h>

#include "cuda/cuda_backend.h"

namespace headroom {

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    const CudaCount count = cuda_device_count();
    if (count.devices == 0) GTEST_SKIP() << "no GPU: " << count.reason;
  }
};

}  // namespace headroom
