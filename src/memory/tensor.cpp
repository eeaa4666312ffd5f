#include "headroom/memory/tensor.h"

#include <utility>

#include "headroom/memory/context.h"

namespace headroom {

Tensor::Tensor(Tensor&& other) noexcept {
  *this = std::move(other);
}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  if (this == &other) return *this;
  if (context_ != nullptr) context_->release_quietly(*this);  // now, not when the other one goes
  context_ = std::exchange(other.context_, nullptr);
  view_ = other.view_;
  phase_run_ = other.phase_run_;
  id_ = other.id_;
  lifetime_ = other.lifetime_;
  return *this;
}

Tensor::~Tensor() {
  if (context_ != nullptr) context_->release_quietly(*this);
}

void Tensor::free() {
  check(context_ != nullptr, "tensor of shape {} was freed already", view_.shape());
  context_->release(*this);
  context_ = nullptr;
}

}  // namespace headroom
