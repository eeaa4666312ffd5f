#include "headroom/memory/arena.h"

#include <cstring>
#include <utility>

#include "headroom/core/error.h"
#include "headroom/memory/packer.h"

#if defined(__SANITIZE_ADDRESS__)
#define HEADROOM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HEADROOM_ASAN 1
#endif
#endif
#if defined(HEADROOM_ASAN)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) (static_cast<void>(address), static_cast<void>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) (static_cast<void>(address), static_cast<void>(bytes))
#endif

namespace headroom {
namespace {

#if defined(NDEBUG)
constexpr bool kFillPoison = false;
#else
constexpr bool kFillPoison = true;
#endif
constexpr std::uint8_t kPoison = 0xFF;  // NaN in f64, f32, bf16 and f16 alike

}  // namespace

Arena::Arena(Backend& backend, Space space, std::int64_t bytes)
    : Arena(backend, space, bytes > 0 ? backend.reserve(space, bytes) : nullptr, bytes) {
  owned_ = true;
}

Arena::Arena(Backend& backend, Space space, void* data, std::int64_t bytes)
    : backend_(&backend), data_(static_cast<std::byte*>(data)), bytes_(bytes), space_(space) {
  check(bytes >= 0 && (bytes == 0 || data != nullptr), "an arena of {} bytes at address {} is no memory",
        bytes, data);
  check(reinterpret_cast<std::uintptr_t>(data) % kArenaAlignment == 0,
        "an arena at address {} is not aligned to {} bytes", data, kArenaAlignment);
  poison(0, bytes);
}

Arena::Arena(Arena&& other) noexcept {
  *this = std::move(other);
}

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  backend_ = other.backend_;
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  space_ = other.space_;
  owned_ = std::exchange(other.owned_, false);
  return *this;
}

Arena::~Arena() {
  give_back();
}

void Arena::give_back() noexcept {
  if (data_ == nullptr) return;
  if (backend_->host_accessible(space_)) ASAN_UNPOISON_MEMORY_REGION(data_, static_cast<std::size_t>(bytes_));
  if (owned_) backend_->release(space_, data_, bytes_);
}

void* Arena::open(std::int64_t offset, std::int64_t bytes) {
  if (offset + bytes > bytes_) {
    fail(ErrorKind::runtime, "block of {} bytes at {} passes the end of an arena of {} bytes", bytes, offset,
         bytes_);
  }
  if (backend_->host_accessible(space_)) {
    ASAN_UNPOISON_MEMORY_REGION(data_ + offset, static_cast<std::size_t>(bytes));
  }
  return data_ + offset;
}

void Arena::close(std::int64_t offset, std::int64_t bytes) noexcept {
  poison(offset, bytes);
}

void Arena::poison(std::int64_t offset, std::int64_t bytes) noexcept {
  if (bytes == 0) return;
  if constexpr (kFillPoison) {
    try {
      if (space_ == Space::host) {  // the host's own by now, and perhaps soon another block's
        std::memset(data_ + offset, kPoison, static_cast<std::size_t>(bytes));
      } else {
        backend_->fill(StreamId::main, data_ + offset, kPoison, bytes);
      }
    } catch (const Error&) {
      // A device that cannot fill fails its next checked call, with a better message than this one could
      // give.
    }
  }
  if (backend_->host_accessible(space_)) {
    ASAN_POISON_MEMORY_REGION(data_ + offset, static_cast<std::size_t>(bytes));
  }
}

}  // namespace headroom
