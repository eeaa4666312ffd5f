// As src/cuda/ptx/tma.h, on the host: copies go on beside the threads.
#pragma once

#include <cuda.h>

#include <array>
#include <cstring>
#include <map>

#include "cuda/ptx/mbarrier.h"

namespace headroom::ptx {

// to <- the box at these coordinates, zeros outside the tensor, in the 128-byte swizzle; done beside.
void tma_load(void* to, const CUtensorMap& map, std::uint64_t& barrier, int c0, int c1, int c2, int c3,
              int c4);

inline void check_bulk(const void* shared, const void* global, std::uint32_t bytes) {
  cuda::Block::require(shared_address(shared) % 16 == 0 && bytes % 16 == 0 &&
                           reinterpret_cast<std::uintptr_t>(global) % 16 == 0,
                       "a bulk copy is in pieces of 16 bytes");
}

inline void bulk_load(void* to, const void* from, std::uint32_t bytes, std::uint64_t& barrier) {
  check_bulk(to, from, bytes);
  auto& block = cuda::Block::current();
  cuda::Beside::current().add([=, &barrier, &block, address = shared_address(to)] {
    block.store_fenced(address, from, bytes);
    mbarrier_complete(barrier, bytes);
  });
}

// A thread's copies to global memory: how many are not read, and not done.
struct BulkCopies {
  int unread = 0;
  int undone = 0;

  static BulkCopies& of_thread() {
    static thread_local std::map<std::pair<const cuda::Block*, unsigned>, BulkCopies> all;
    return all[{&cuda::Block::current(), cuda::threadIdx.x}];
  }
  // Reads shared memory at one moment and writes global memory at a later one.
  template <class Write>
  static void begin(float* to, const void* from, std::uint32_t bytes, const Write& write) {
    check_bulk(from, to, bytes);
    BulkCopies& copies = of_thread();
    ++copies.unread;
    ++copies.undone;
    const std::byte* fenced = cuda::Block::current().fenced() + shared_address(from);
    cuda::Beside::current().add([=, &copies] {
      std::vector<float> read(bytes / sizeof(float));
      std::memcpy(read.data(), fenced, bytes);
      --copies.unread;
      cuda::Beside::current().add([=, &copies] {
        for (std::size_t i = 0; i < read.size(); ++i) write(to[i], read[i]);
        --copies.undone;
      });
    });
  }
};

inline void bulk_store(float* to, const void* from, std::uint32_t bytes) {
  BulkCopies::begin(to, from, bytes, [](float& there, float read) { there = read; });
}
inline void bulk_add(float* to, const void* from, std::uint32_t bytes) {
  BulkCopies::begin(to, from, bytes, [](float& there, float read) { there += read; });
}
inline void bulk_commit() {}

template <int kPending>
void bulk_wait_read() {
  static_assert(kPending == 0, "a copy is a group, and all are waited for");
  const BulkCopies& copies = BulkCopies::of_thread();
  cuda::Block::current().wait_until("its copies to be read", [&] { return copies.unread == 0; });
}
template <int kPending>
void bulk_wait() {
  static_assert(kPending == 0);
  const BulkCopies& copies = BulkCopies::of_thread();
  cuda::Block::current().wait_until("its copies to be written", [&] { return copies.undone == 0; });
}

}  // namespace headroom::ptx
