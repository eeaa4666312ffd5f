#include "headroom/memory/tensor.h"

#include <utility>

#include "headroom/memory/context.h"

namespace headroom {

Tensor::Tensor(Tensor&& other) noexcept {
  *this = std::move(other);
}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(view_, other.view_);
  std::swap(phase_run_, other.phase_run_);
  std::swap(id_, other.id_);
  std::swap(lifetime_, other.lifetime_);
  return *this;
}

Tensor::~Tensor() {
  if (context_ != nullptr) context_->release_quietly(*this);
}

void Tensor::free() {
  check(context_ != nullptr, "tensor of shape {} was freed already", to_string(view_.shape()));
  std::exchange(context_, nullptr)->release(*this);
}

}  // namespace headroom
