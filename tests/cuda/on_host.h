// CUDA kernels on the host, thread by thread: what the kernels' sources need of the language, and a launch()
// that runs every thread of a block as a fiber, from barrier to barrier. Slow, exact about indices, barriers,
// shuffles and masks; it says nothing about memory order inside a warp between barriers. Include it before
// an -inl.h of kernels.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "headroom/core/stream.h"

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __shared__
#define __launch_bounds__(...)

struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline float __uint_as_float(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}
inline std::uint32_t __float_as_uint(float value) {
  return std::bit_cast<std::uint32_t>(value);
}
inline int __popc(unsigned bits) {
  return std::popcount(bits);
}
inline int __clz(int bits) {
  return std::countl_zero(static_cast<unsigned>(bits));
}

namespace headroom::cuda {

struct Index {
  unsigned x = 0;
};
// Ranks that are threads launch at the same time.
inline thread_local Index threadIdx;
inline thread_local Index blockIdx;
inline thread_local float4* shared_memory = nullptr;

// The fibers of one block.
class Block {
 public:
  static constexpr int kWarpSize = 32;
  static constexpr std::size_t kStackBytes = 128 << 10;

  static Block& current() {
    static thread_local Block block;
    return block;
  }

  void run(int threads, std::size_t shared_bytes, const std::function<void()>& body) {
    body_ = &body;
    shared_.assign(shared_bytes / sizeof(float4) + 1, float4{});
    std::memset(shared_.data(), 0xFF, shared_.size() * sizeof(float4));  // NaN until it is written
    shared_memory = shared_.data();
    threads_ = static_cast<std::size_t>(threads);
    if (fibers_.size() < threads_) {  // those of larger blocks stay: their stacks are used again
      fibers_.resize(threads_);
      values_.resize(threads_);
    }
    for (std::size_t i = 0; i < threads_; ++i) {
      Fiber& fiber = fibers_[i];
      fiber.waits = Waits::no;
      if (fiber.stack) continue;
      fiber.stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      makecontext(&fiber.context, &Block::enter, 0);
    }
    while (step()) {
    }
  }

  void sync_block() { wait(Waits::for_block); }
  void sync_warp() { wait(Waits::for_warp); }

  // Every lane of the warp gives words and sees all of them, until it is done.
  using Words = std::array<std::uint32_t, 6>;
  const Words* exchange(const Words& words) {
    values_[running_] = words;
    sync_warp();
    return values_.data() + running_ / kWarpSize * kWarpSize;
  }
  void exchange_done() { sync_warp(); }

 private:
  enum class Waits { no, for_warp, for_block, for_ever };
  struct Fiber {
    ucontext_t context{};  // where it begins
    jmp_buf place{};       // where it goes on
    bool began = false;
    std::unique_ptr<std::byte[]> stack;
    Waits waits = Waits::no;
  };

  // A fiber runs the bodies of all blocks to come.
  static void enter() {
    Block& block = current();
    while (true) {
      (*block.body_)();
      block.wait(Waits::for_ever);
    }
  }

  // Contexts begin fibers, jumps go back and forth: a switch of contexts calls the system every time.
  void wait(Waits what) {
    Fiber& self = fibers_[running_];
    self.waits = what;
    if (_setjmp(self.place) == 0) _longjmp(scheduler_, 1);
  }
  __attribute__((noinline)) void go_on(Fiber& fiber) {
    if (_setjmp(scheduler_) != 0) return;
    if (fiber.began) _longjmp(fiber.place, 1);
    fiber.began = true;
    setcontext(&fiber.context);
  }

  // Runs whoever can run; then opens the barriers at which everybody has arrived.
  bool step() {
    for (std::size_t i = 0; i < threads_; ++i) {
      if (fibers_[i].waits != Waits::no) continue;
      running_ = i;
      threadIdx.x = static_cast<unsigned>(i);
      go_on(fibers_[i]);
    }
    bool opened = false;
    bool all_at_block = true;
    bool any_alive = false;
    for (std::size_t warp = 0; warp < threads_; warp += kWarpSize) {
      bool all_at_warp = true;
      for (std::size_t i = warp; i < warp + kWarpSize; ++i) {
        any_alive |= fibers_[i].waits != Waits::for_ever;
        all_at_warp &= fibers_[i].waits == Waits::for_warp || fibers_[i].waits == Waits::for_ever;
        all_at_block &= fibers_[i].waits == Waits::for_block || fibers_[i].waits == Waits::for_ever;
      }
      if (!all_at_warp) continue;
      for (std::size_t i = warp; i < warp + kWarpSize; ++i) {
        if (fibers_[i].waits != Waits::for_warp) continue;
        fibers_[i].waits = Waits::no;
        opened = true;
      }
    }
    if (!any_alive) return false;
    if (all_at_block) {
      for (std::size_t i = 0; i < threads_; ++i) {
        if (fibers_[i].waits == Waits::for_block) fibers_[i].waits = Waits::no;
      }
      opened = true;
    }
    if (!opened) std::abort();  // some wait for the warp, some for the block: a deadlock on the GPU too
    return true;
  }

  const std::function<void()>* body_ = nullptr;
  std::vector<float4> shared_;
  std::vector<Fiber> fibers_;
  std::size_t threads_ = 0;  // of the block that runs
  std::vector<Words> values_;
  jmp_buf scheduler_{};
  std::size_t running_ = 0;
};

inline void __syncthreads() {
  Block::current().sync_block();
}
// Blocks run one after the other.
template <class T>
T atomicAdd(T* to, T value) {
  const T before = *to;
  *to += value;
  return before;
}
inline int atomicMax(int* to, int value) {
  const int before = *to;
  *to = std::max(before, value);
  return before;
}
inline void __syncwarp() {
  Block::current().sync_warp();
}
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  const unsigned lane = threadIdx.x % Block::kWarpSize;
  const Block::Words* words = Block::current().exchange({std::bit_cast<std::uint32_t>(value)});
  const auto result = std::bit_cast<float>(words[lane ^ static_cast<unsigned>(mask)][0]);
  Block::current().exchange_done();
  return result;
}
inline std::uint32_t __ballot_sync(unsigned, bool value) {
  const Block::Words* words = Block::current().exchange({value ? 1U : 0U});
  std::uint32_t bits = 0;
  for (int i = 0; i < Block::kWarpSize; ++i) bits |= words[i][0] << i;
  Block::current().exchange_done();
  return bits;
}
inline std::int32_t __shfl_sync(unsigned, std::int32_t value, int lane) {
  const Block::Words* words = Block::current().exchange({static_cast<std::uint32_t>(value)});
  const auto result = static_cast<std::int32_t>(words[lane][0]);
  Block::current().exchange_done();
  return result;
}
inline double __shfl_sync(unsigned, double value, int lane) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const Block::Words* words =
      Block::current().exchange({static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32)});
  const auto result =
      std::bit_cast<double>(words[lane][0] | static_cast<std::uint64_t>(words[lane][1]) << 32);
  Block::current().exchange_done();
  return result;
}
inline bool __any_sync(unsigned mask, bool value) {
  return __ballot_sync(mask, value) != 0;
}

// mma m16n8k8 in tf32: operands cut to 19 bits, sums rounded towards zero as tensor cores do.
inline void multiply_tf32_on_host(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  const unsigned lane = threadIdx.x % Block::kWarpSize;
  const unsigned g = lane / 4;
  const unsigned t = lane % 4;
  const Block::Words* words = Block::current().exchange({a[0], a[1], a[2], a[3], b[0], b[1]});
  const auto cut = [](std::uint32_t bits) {
    return static_cast<double>(std::bit_cast<float>(bits & 0xffffe000u));
  };
  for (unsigned r = 0; r < 4; ++r) {
    const unsigned row = r / 2;  // 0: g, 1: g + 8
    const unsigned column = 2 * t + r % 2;
    double sum = static_cast<double>(d[r]);
    for (unsigned k = 0; k < 8; ++k) {
      sum += cut(words[4 * g + k % 4][row + k / 4 * 2]) * cut(words[4 * column + k % 4][4 + k / 4]);
    }
    auto rounded = static_cast<float>(sum);
    if (std::abs(static_cast<double>(rounded)) > std::abs(sum)) rounded = std::nextafter(rounded, 0.0F);
    d[r] = rounded;
  }
  Block::current().exchange_done();
}

template <class... Parameters>
void launch(const char*, void (*kernel)(Parameters...), std::int64_t blocks, int threads,
            std::int64_t shared_bytes, const Stream&, const Parameters&... arguments) {
  for (std::int64_t block = 0; block < blocks; ++block) {
    blockIdx.x = static_cast<unsigned>(block);
    Block::current().run(threads, static_cast<std::size_t>(shared_bytes), [&] { kernel(arguments...); });
  }
}

inline void set_bytes(void* data, std::uint8_t value, std::int64_t bytes, const Stream&) {
  std::memset(data, value, static_cast<std::size_t>(bytes));
}

}  // namespace headroom::cuda
