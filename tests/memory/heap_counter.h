// Counts this executable's heap at malloc itself. Include in one source file of a test executable. Sanitizers
// bring their own malloc, so under them there is no count.
#pragma once

#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HEADROOM_HEAP_COUNTED 0
#else
#define HEADROOM_HEAP_COUNTED 1

namespace headroom {
inline std::atomic<std::int64_t> heap_bytes{0};       // handed out and not yet freed
inline std::atomic<std::int64_t> heap_peak_bytes{0};  // the highest that was, since somebody reset it
}  // namespace headroom

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);

static void* counted(void* pointer) {
  if (pointer != nullptr) {
    const std::int64_t now = headroom::heap_bytes += static_cast<std::int64_t>(malloc_usable_size(pointer));
    if (now > headroom::heap_peak_bytes) headroom::heap_peak_bytes = now;
  }
  return pointer;
}
static void uncount(void* pointer) {
  if (pointer != nullptr) headroom::heap_bytes -= static_cast<std::int64_t>(malloc_usable_size(pointer));
}

void* malloc(std::size_t bytes) {
  return counted(__libc_malloc(bytes));
}
void* calloc(std::size_t count, std::size_t bytes) {
  return counted(__libc_calloc(count, bytes));
}
void* realloc(void* pointer, std::size_t bytes) {
  uncount(pointer);
  return counted(__libc_realloc(pointer, bytes));
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  return counted(__libc_memalign(alignment, bytes));
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return counted(__libc_memalign(alignment, bytes));
}
int posix_memalign(void** pointer, std::size_t alignment, std::size_t bytes) {
  *pointer = counted(__libc_memalign(alignment, bytes));
  return *pointer == nullptr ? ENOMEM : 0;
}
void free(void* pointer) {
  uncount(pointer);
  __libc_free(pointer);
}
}
#endif
