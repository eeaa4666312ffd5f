// The kernels' own sources, compiled for the host: they take the place of the library's when a program is
// linked with this file and attention_on_host.cpp, and every thread of a block is a fiber.
#include "cuda/on_host.h"
// Kernels come after what they need of the language.
#include "headroom/core/elements.h"
#include "loss/cuda/slice.cu"
#include "loss/cuda/softmax.cu"
#include "ops/cuda/elementwise.cu"
#include "ops/cuda/embedding.cu"
#include "ops/cuda/heads.cu"
#include "ops/cuda/random_fill.cu"
#include "ops/cuda/rms_norm.cu"
#include "ops/cuda/rope.cu"
#include "ops/cuda/update.cu"
#include "ops/matmul.h"

namespace headroom {
// In place of cuBLASLt.
void product_cuda(const Product& product, TensorView, const Stream&) {
  const auto& [a, b, c, add, addend] = product;
  for (std::int64_t i = 0; i < c.extent(0); ++i) {
    for (std::int64_t j = 0; j < c.extent(1); ++j) {
      float sum = 0;
      for (std::int64_t k = 0; k < a.extent(1); ++k) {
        sum += static_cast<float>(read_element(a, a.offset(i, k)) * read_element(b, b.offset(k, j)));
      }
      if (add) sum += static_cast<float>(read_element(c, c.offset(i, j)));
      if (addend.elements() > 0) sum += static_cast<float>(read_element(addend, addend.offset(i, j)));
      write_element(c, c.offset(i, j), sum);
    }
  }
}

}  // namespace headroom
