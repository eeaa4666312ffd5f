// CUDA kernels on the host, thread by thread: what the kernels' sources need of the language, and a launch()
// that runs every thread of a block as a fiber, from wait to wait. Slow, exact about indices, barriers,
// shuffles and masks; it says nothing about memory order inside a warp between barriers. What copy engine and
// tensor cores do beside the threads is done at moments that a test chooses. Include it before an -inl.h of
// kernels.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
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
#define __grid_constant__

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
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline float __uint_as_float(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}
inline std::uint32_t __float_as_uint(float value) {
  return std::bit_cast<std::uint32_t>(value);
}
inline float __fdividef(float a, float b) {
  return a / b;
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
inline thread_local Index blockDim;
inline thread_local Index gridDim;
inline thread_local float4* shared_memory = nullptr;

// What goes on beside the threads (copies, products): each piece is done once, at a moment of nobody's
// choice. A test chooses it: at once; as late as possible, when no thread can go on; or drawn, and then
// threads are held up at random, too.
class Beside {
 public:
  enum class Moments { at_once, as_late_as_possible, drawn };

  static Beside& current() {
    static thread_local Beside beside;
    return beside;
  }
  void choose(Moments moments, std::uint64_t seed = 1) {
    moments_ = moments;
    state_ = seed * 0x9E3779B97F4A7C15U + 1;
  }
  void add(std::function<void()> piece) {
    if (moments_ == Moments::at_once || (moments_ == Moments::drawn && chance(2))) return piece();
    pieces_.push_back(std::move(piece));
  }
  // Some of what is left, where moments are drawn.
  void do_some() {
    while (moments_ == Moments::drawn && !pieces_.empty() && chance(3)) do_one();
  }
  // Any of it; false where nothing is left.
  bool do_one() {
    if (pieces_.empty()) return false;
    const std::size_t which = moments_ == Moments::drawn ? draw() % pieces_.size() : 0;
    const std::function<void()> piece = std::move(pieces_[which]);
    pieces_.erase(pieces_.begin() + static_cast<std::ptrdiff_t>(which));
    piece();
    return true;
  }
  bool holds_up() { return moments_ == Moments::drawn && chance(4); }

 private:
  std::uint64_t draw() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ >> 11;
  }
  bool chance(std::uint64_t one_in) { return draw() % one_in == 0; }

  Moments moments_ = Moments::at_once;
  std::uint64_t state_ = 1;
  std::vector<std::function<void()>> pieces_;
};

// The fibers of one block.
class Block {
 public:
  static constexpr int kWarpSize = 32;
  static constexpr std::size_t kStackBytes = 128 << 10;
  static constexpr std::size_t kSharedAlignment = 1024;

  // The one whose threads run.
  static Block& current() { return *running_block_; }

  void start(std::int64_t index, int threads, std::size_t shared_bytes, const std::function<void()>& body) {
    body_ = &body;
    index_ = static_cast<unsigned>(index);
    shared_.assign((shared_bytes + kSharedAlignment) / sizeof(float4) + 1, float4{});
    std::memset(shared_.data(), 0xFF, shared_.size() * sizeof(float4));  // NaN until it is written
    void* aligned = shared_.data();
    std::size_t space = shared_.size() * sizeof(float4);
    shared_begin_ = static_cast<float4*>(std::align(kSharedAlignment, shared_bytes, aligned, space));
    shared_bytes_ = shared_bytes;
    fenced_.assign(shared_bytes, std::byte{0xFF});
    named_.fill({});
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
  }

  [[nodiscard]] float4* shared() const { return shared_begin_; }
  // Shared memory as the copy engine and the tensor cores read it: as it was at the last fence of any warp. A
  // missing fence is found only if no other warp fences between the store and the read.
  [[nodiscard]] std::byte* fenced() { return fenced_.data(); }
  // A warp's last thread copies for all of it: the others have made their stores by then.
  void fence() {
    if (threadIdx.x % kWarpSize == kWarpSize - 1) std::memcpy(fenced(), shared_begin_, shared_bytes_);
  }
  // What the copy engine stores is there for threads, too, once a barrier has said so.
  void store_fenced(std::uint32_t address, const void* from, std::size_t bytes) {
    std::memcpy(fenced() + address, from, bytes);
    std::memcpy(reinterpret_cast<std::byte*>(shared_begin_) + address, from, bytes);
  }
  void sync_block() { wait(Waits::for_block); }
  void sync_warp() { wait(Waits::for_warp); }
  // Until the condition holds; `what` is for who asks why nothing goes on.
  template <class Condition>
  void wait_until(const char* what, const Condition& condition) {
    Fiber& self = fibers_[running_];
    self.what = what;
    self.condition = &condition;
    self.holds = [](const void* held) { return (*static_cast<const Condition*>(held))(); };
    wait(Waits::until);
  }
  // A thread that asks again and again lets the others go on in between.
  void ask_again(const char* what) {
    fibers_[running_].what = what;
    wait(Waits::to_ask);
  }

  // Named barriers open when so many threads have arrived; who syncs also waits for that.
  void arrive(int barrier, int threads) {
    NamedBarrier& named = named_[static_cast<std::size_t>(barrier)];
    require(named.arrived == 0 || named.threads == threads, "a named barrier is for one number of threads");
    named.threads = threads;
    if (++named.arrived < threads) return;
    named.arrived = 0;
    ++named.openings;
  }
  void sync(int barrier, int threads) {
    NamedBarrier& named = named_[static_cast<std::size_t>(barrier)];
    const std::uint64_t before = named.openings;
    arrive(barrier, threads);
    wait_until("a named barrier", [&] { return named.openings != before; });
  }

  // Every lane of the warp gives words and sees all of them, until it is done.
  using Words = std::array<std::uint32_t, 6>;
  const Words* exchange(const Words& words) {
    values_[running_] = words;
    sync_warp();
    return values_.data() + running_ / kWarpSize * kWarpSize;
  }
  void exchange_done() { sync_warp(); }

  // Runs whoever can run; then opens the barriers at which everybody has arrived. False where no thread went
  // on; one that asks does not count.
  bool step() {
    running_block_ = this;
    shared_memory = shared_begin_;
    blockIdx.x = index_;
    bool any_ran = false;
    for (std::size_t i = 0; i < threads_; ++i) {
      if (i % kWarpSize == 0 && Beside::current().holds_up()) {
        i += kWarpSize - 1;
        any_ran = true;
        continue;
      }
      Fiber& fiber = fibers_[i];
      if (fiber.waits == Waits::until && fiber.holds(fiber.condition)) fiber.waits = Waits::no;
      if (fiber.waits != Waits::no && fiber.waits != Waits::to_ask) continue;
      any_ran |= fiber.waits == Waits::no;
      fiber.waits = Waits::no;
      running_ = i;
      threadIdx.x = static_cast<unsigned>(i);
      go_on(fiber);
    }
    return open_barriers() || any_ran;
  }
  [[nodiscard]] bool ended() const {
    return std::all_of(fibers_.begin(), fibers_.begin() + static_cast<std::ptrdiff_t>(threads_),
                       [](const Fiber& fiber) { return fiber.waits == Waits::for_ever; });
  }
  // For who asks why nothing goes on.
  void print_waits() const {
    for (std::size_t i = 0; i < threads_; ++i) {
      const Fiber& fiber = fibers_[i];
      if (fiber.waits == Waits::for_ever) continue;
      const char* what = fiber.waits == Waits::until || fiber.waits == Waits::to_ask ? fiber.what
                         : fiber.waits == Waits::for_warp                            ? "its warp"
                                                                                     : "its block";
      std::fprintf(stderr, "block %u, thread %zu waits for %s\n", index_, i, what);
    }
  }

  // What the GPU would not forgive.
  static void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "block %u, thread %u: %s\n", blockIdx.x, threadIdx.x, what);
    std::abort();
  }

 private:
  enum class Waits { no, for_warp, for_block, until, to_ask, for_ever };
  struct Fiber {
    ucontext_t context{};  // where it begins
    jmp_buf place{};       // where it goes on
    bool began = false;
    std::unique_ptr<std::byte[]> stack;
    Waits waits = Waits::no;
    const char* what = nullptr;
    const void* condition = nullptr;
    bool (*holds)(const void*) = nullptr;
  };
  struct NamedBarrier {
    int threads = 0;
    int arrived = 0;
    std::uint64_t openings = 0;
  };

  // A fiber runs the bodies of all blocks to come.
  static void enter() {
    while (true) {
      Block& block = current();
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

  bool open_barriers() {
    bool opened = false;
    bool all_at_block = true;
    for (std::size_t warp = 0; warp < threads_; warp += kWarpSize) {
      bool all_at_warp = true;
      for (std::size_t i = warp; i < warp + kWarpSize; ++i) {
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
    if (!all_at_block) return opened;
    for (std::size_t i = 0; i < threads_; ++i) {
      if (fibers_[i].waits != Waits::for_block) continue;
      fibers_[i].waits = Waits::no;
      opened = true;
    }
    return opened;
  }

  static inline thread_local Block* running_block_ = nullptr;

  const std::function<void()>* body_ = nullptr;
  unsigned index_ = 0;
  std::vector<float4> shared_;
  float4* shared_begin_ = nullptr;
  std::size_t shared_bytes_ = 0;
  std::vector<std::byte> fenced_;
  std::array<NamedBarrier, 16> named_{};
  std::vector<Fiber> fibers_;
  std::size_t threads_ = 0;  // of the block that runs
  std::vector<Words> values_;
  jmp_buf scheduler_{};
  std::size_t running_ = 0;
};

inline int min(int a, int b) {
  return std::min(a, b);
}
inline int max(int a, int b) {
  return std::max(a, b);
}
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
inline std::uint32_t __shfl_xor_sync(unsigned, std::uint32_t value, int mask) {
  const unsigned lane = threadIdx.x % Block::kWarpSize;
  const Block::Words* words = Block::current().exchange({value});
  const std::uint32_t result = words[lane ^ static_cast<unsigned>(mask)][0];
  Block::current().exchange_done();
  return result;
}
inline float __shfl_xor_sync(unsigned lanes, float value, int mask) {
  return std::bit_cast<float>(__shfl_xor_sync(lanes, std::bit_cast<std::uint32_t>(value), mask));
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

inline bool __all_sync(unsigned mask, bool value) {
  return !__any_sync(mask, !value);
}
inline int __reduce_max_sync(unsigned, int value) {
  const Block::Words* words = Block::current().exchange({static_cast<std::uint32_t>(value)});
  for (int i = 0; i < Block::kWarpSize; ++i) value = std::max(value, static_cast<int>(words[i][0]));
  Block::current().exchange_done();
  return value;
}
inline int __reduce_min_sync(unsigned mask, int value) {
  return -__reduce_max_sync(mask, -value);
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

// So many blocks run at a time. Kernels whose blocks wait for each other need as many as they launch, or
// blocks that wait only for those before them.
inline thread_local std::int64_t resident_blocks = 1;

enum class Begin : std::uint8_t { after, early };

template <Begin = Begin::after, class... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), std::int64_t blocks, int threads,
            std::int64_t shared_bytes, const Stream&, const Parameters&... arguments) {
  static thread_local std::vector<std::unique_ptr<Block>> resident;
  const std::function<void()> body = [&] { kernel(arguments...); };
  blockDim.x = static_cast<unsigned>(threads);
  gridDim.x = static_cast<unsigned>(blocks);
  const auto places = static_cast<std::size_t>(std::min(blocks, resident_blocks));
  while (resident.size() < places) resident.push_back(std::make_unique<Block>());
  std::int64_t next = 0;
  const auto start = [&](Block& block) {
    block.start(next++, threads, static_cast<std::size_t>(shared_bytes), body);
  };
  for (std::size_t i = 0; i < places; ++i) start(*resident[i]);
  std::vector<Block*> running;
  for (std::size_t i = 0; i < places; ++i) running.push_back(resident[i].get());
  int quiet = 0;  // rounds in which nobody went on; whoever asks may have found what others wait for
  while (!running.empty()) {
    bool any_ran = false;
    for (Block* block : running) any_ran |= block->step();
    Beside::current().do_some();
    for (std::size_t i = running.size(); i-- > 0;) {
      if (!running[i]->ended()) continue;
      if (next < blocks) {
        start(*running[i]);
      } else {
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
      }
      any_ran = true;
    }
    quiet = any_ran || Beside::current().do_one() ? 0 : quiet + 1;
    if (quiet < 3) continue;
    std::fprintf(stderr, "%s hangs, on the GPU too\n", name);
    for (const Block* block : running) block->print_waits();
    std::abort();
  }
  while (Beside::current().do_one()) {
  }
}

inline void set_bytes(void* data, std::uint8_t value, std::int64_t bytes, const Stream&) {
  std::memset(data, value, static_cast<std::size_t>(bytes));
}

}  // namespace headroom::cuda
