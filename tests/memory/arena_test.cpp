#include "headroom/memory/arena.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <fstream>

#include "headroom/core/error.h"
#include "headroom/cpu.h"
#include "memory/rehearsed.h"

namespace headroom {
namespace {

TEST(Arena, IsAlignedPresentAndGivenBack) {
  CpuBackend backend(1);
  Arena arena(backend, Space::device, (std::int64_t{8} << 20) + 1);
  void* data = arena.open(0, arena.bytes());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % (2 << 20), 0U);  // can be huge pages
  auto* bytes = static_cast<std::uint8_t*>(data);
  bytes[0] = bytes[arena.bytes() - 1] = 1;
  arena.close(0, arena.bytes());
  EXPECT_THROW(static_cast<void>(arena.open(256, arena.bytes())), Error);
  Arena moved = std::move(arena);
  EXPECT_GT(moved.bytes(), 0);
}

TEST(Arena, AnEmptyOneReservesNothing) {
  CpuBackend backend(1);
  const Arena arena(backend, Space::host, 0);
  EXPECT_EQ(arena.bytes(), 0);
}

TEST(Arena, MoreThanTheMachineHasIsRefusedWithTheArithmetic) {
  CpuBackend backend(1);
  try {
    const Arena arena(backend, Space::device, std::int64_t{1} << 50);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::memory);
    EXPECT_NE(std::string(error.what()).find("1 PiB"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("free"), std::string::npos) << error.what();
  }
}

#if !defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__)
TEST(Arena, AFreedViewReadsAsNaNInADebugBuild) {
  run_rehearsed([](Context& context) {
    context.phase(Phase::step, [&] {
      Tensor a = context.allocate({.name = "a", .shape = {64}});
      const TensorView view = a;
      context.run([&](const Stream&) {
        EXPECT_TRUE(std::isnan(view.data<float>()[5]));  // not written yet
        view.data<float>()[5] = 1;
      });
      a.free();
      context.run([&](const Stream&) { EXPECT_TRUE(std::isnan(view.data<float>()[5])); });
    });
  });
}
#endif

#if defined(__SANITIZE_ADDRESS__)
TEST(ArenaDeathTest, AFreedViewIsCaught) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(run_rehearsed([](Context& context) {
                 context.phase(Phase::step, [&] {
                   Tensor a = context.allocate({.name = "a", .shape = {64}});
                   const TensorView view = a;
                   a.free();
                   context.run([&](const Stream&) { view.data<float>()[5] = 1; });
                 });
               }),
               "use-after-poison");
}

TEST(ArenaDeathTest, AWritePastTheEndIsCaught) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(run_rehearsed([](Context& context) {
                 context.phase(Phase::step, [&] {
                   const Tensor a = context.allocate({.name = "a", .shape = {10}});
                   context.run([&](const Stream&) {
                     volatile int past = 10;
                     a.data<float>()[past] = 1;
                   });
                 });
               }),
               "use-after-poison");
}
#endif

}  // namespace
}  // namespace headroom
