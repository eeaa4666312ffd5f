// A workspace cut into aligned pieces: one piece of code counts them for workspace_bytes (without memory) and
// hands them out in the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "headroom/core/checked.h"

namespace headroom {

class Pieces {
 public:
  static constexpr std::int64_t kAlignment = 64;

  explicit Pieces(std::byte* base) : base_(base) {}

  template <class T>
  T* take(std::int64_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + taken_);
    taken_ = checked_add(taken_, round_up(checked_multiply(count, sizeof(T)), kAlignment));
    return piece;
  }
  std::span<std::byte> take_bytes(std::int64_t bytes) {
    return {take<std::byte>(bytes), static_cast<std::size_t>(base_ == nullptr ? 0 : bytes)};
  }
  [[nodiscard]] std::int64_t bytes() const { return taken_; }

 private:
  std::byte* base_;
  std::int64_t taken_ = 0;
};

}  // namespace headroom
