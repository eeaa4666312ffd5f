// What the eager programs are written in. A Tensor is a Python reference or what a node of autograd's graph
// saved; it goes when it goes out of scope or is dropped, which is when the last such reference does.
#pragma once

#include <cstdint>
#include <string_view>

#include "headroom/core/bytes.h"
#include "headroom/memory/context.h"

namespace headroom {

template <class... Tensors>
void drop(Tensors&... tensors) {
  ((tensors = Tensor()), ...);
}

class EagerProgram {
 public:
  explicit EagerProgram(Context& context) : context_(context) {}

  [[nodiscard]] Context& context() const { return context_; }

  [[nodiscard]] Tensor make(std::string_view name, Category category, DType dtype, const Shape& shape) const {
    return context_.allocate({.name = name, .category = category, .dtype = dtype, .shape = shape});
  }
  // Token ids, labels, indices: PyTorch's integers are 64-bit.
  [[nodiscard]] Tensor integers(std::string_view name, std::int64_t count) const {
    return make(name, Category::activations, DType::u8, {count, 8});
  }

  // A product takes the workspace of its cuBLAS handle with the handle's first use. Handles belong to
  // threads, and autograd runs backward on a thread of its own.
  void product_in_forward() { take_workspace(forward_workspace_, "cuBLAS workspace, forward"); }
  void product_in_backward() { take_workspace(backward_workspace_, "cuBLAS workspace, backward"); }

 private:
  void take_workspace(Tensor& workspace, std::string_view name) const {
    if (workspace.view().elements() > 0) return;
    // PyTorch's own default: 32 MiB on Hopper and Blackwell, elsewhere cuBLAS's ":4096:2:16:8".
    const int major = context_.description().compute_major;
    const bool large = major == 9 || major == 10 || major == 12;
    workspace = make(name, Category::workspace, DType::u8, {large ? 32 * kMiB : 8 * kMiB + 128 * kKiB});
  }

  Context& context_;
  Tensor forward_workspace_;
  Tensor backward_workspace_;
};

}  // namespace headroom
