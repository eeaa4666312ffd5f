// One reservation. Blocks are offsets into it; what is not a live block is poisoned, so that a freed view or
// a write past a block's end is caught at once in a sanitized build, and reads as NaN in a debug build.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headroom/memory/backend.h"

namespace headroom {

class Arena {
 public:
  Arena() = default;
  Arena(Backend& backend, Space space, std::int64_t bytes);  // reserves
  // Memory that somebody hands over, aligned to kArenaAlignment.
  Arena(Backend& backend, Space space, void* data, std::int64_t bytes);
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  // The block's address; from now on it may be used.
  [[nodiscard]] void* open(std::int64_t offset, std::int64_t bytes);
  // From now on it may not.
  void close(std::int64_t offset, std::int64_t bytes) noexcept;

 private:
  void poison(std::int64_t offset, std::int64_t bytes) noexcept;
  void give_back() noexcept;

  Backend* backend_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  Space space_ = Space::device;
  bool owned_ = false;
};

}  // namespace headroom
