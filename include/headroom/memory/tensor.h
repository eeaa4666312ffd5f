// A tensor that owns a block of an arena and gives it back when it goes. It must not outlive its Context.
#pragma once

#include <cstdint>

#include "headroom/core/tensor_view.h"
#include "headroom/memory/ledger.h"

namespace headroom {

class Context;

class Tensor {
 public:
  Tensor() = default;
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(Tensor&& other) noexcept;
  ~Tensor();

  [[nodiscard]] const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }
  template <class T>
  [[nodiscard]] T* data() const {
    return view_.data<T>();
  }

  // Gives the block back now. Unlike the destructor it may throw: twice, or where the rehearsal did
  // otherwise.
  void free();

 private:
  friend class Context;

  Context* context_ = nullptr;
  TensorView view_;
  std::int64_t phase_run_ = 0;  // which run of a phase it belongs to
  std::uint32_t id_ = 0;
  Lifetime lifetime_ = Lifetime::phase;
};

}  // namespace headroom
