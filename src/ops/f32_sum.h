// A gradient that partial sums are added to, in f32: an f32 one itself, of a 16-bit one a copy that is
// rounded back once. The sums go on from what is there, so that the bits do not depend on how many parts
// there are.
#pragma once

#include <string_view>

#include "headroom/memory/context.h"
#include "headroom/ops/elementwise.h"

namespace headroom {

class F32Sum {
 public:
  // With `parts` false the gradient is added to once, and needs no copy.
  F32Sum(Context& context, const TensorView& gradient, std::string_view name, bool parts)
      : context_(context), gradient_(gradient) {
    if (gradient.dtype() == DType::f32 || !parts) return;
    copy_ = context.allocate({.name = name, .category = Category::gradients, .shape = gradient.shape()});
    convert(context, gradient, copy_);
  }

  [[nodiscard]] const TensorView& view() const { return copied() ? copy_.view() : gradient_; }

  // The gradient <- the sum.
  void store() const {
    if (copied()) convert(context_, copy_, gradient_);
  }

 private:
  [[nodiscard]] bool copied() const { return copy_.view().elements() > 0; }

  Context& context_;
  TensorView gradient_;
  Tensor copy_;
};

}  // namespace headroom
