#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "headroom/memory.h"
#include "memory/rehearsed.h"

namespace headroom {
namespace {

Ledger summed(const Ranks& ranks) {
  Context context(DeviceDescription{.name = "made up"}, ranks);
  context.phase(Phase::step, [&] {
    const Tensor value = context.allocate({.name = "value", .dtype = DType::f64, .shape = {5}});
    context.all_reduce(value);
  });
  EXPECT_EQ(context.all_reduce(2.5), 2.5 * ranks.count);
  return std::move(context).take_ledger();
}

// Without a communicator a context is one rank: sums are what they were, and no event tells of them.
TEST(Ranks, OneRankSumsNothing) {
  EXPECT_EQ(summed({}).phases()[0].events.size(), 2U);
  const Ledger two = summed({1, 2});
  ASSERT_EQ(two.phases()[0].events.size(), 5U);  // with its workspace
  EXPECT_EQ(two.describe(two.phases()[0].events[2]), "all-reduce 40 bytes");
  run_rehearsed([](Context& context) {
    EXPECT_EQ(context.ranks(), Ranks{});
    context.phase(Phase::step, [&] {
      const Tensor value = context.allocate({.name = "value", .shape = {1}});
      context.run([&](const Stream&) { *value.data<float>() = 7; });
      context.all_reduce(value);
      context.run([&](const Stream&) { EXPECT_EQ(*value.data<float>(), 7); });
    });
    EXPECT_EQ(context.all_reduce(3.0), 3.0);
  });
}

TEST(Ranks, ARankThatIsNotThereIsRefused) {
  for (const Ranks& wrong : {Ranks{0, 0}, Ranks{-1, 2}, Ranks{2, 2}}) {
    EXPECT_THROW(Context(DeviceDescription{.name = "made up"}, wrong), Error);
  }
}

// A run on other ranks than were rehearsed departs from its rehearsal.
TEST(Ranks, ARunWithoutItsRanksDeparts) {
  CpuBackend backend(1);
  Context context(backend, make_layout(summed({0, 2})));
  EXPECT_THROW(context.phase(Phase::step,
                             [&] {
                               const Tensor value =
                                   context.allocate({.name = "value", .dtype = DType::f64, .shape = {5}});
                               context.all_reduce(value);
                             }),
               Error);
}

TEST(Ranks, WhatCannotBeSummedIsRefusedInRehearsal) {
  for (const Ranks& ranks : {Ranks{}, Ranks{0, 2}}) {
    Context context(DeviceDescription{.name = "made up"}, ranks);
    context.phase(Phase::step, [&] {
      Tensor half = context.allocate({.name = "half", .dtype = DType::f16, .shape = {4}});
      EXPECT_THROW(context.all_reduce(half), Error);
      half.free();
      EXPECT_THROW(context.all_reduce(half), Error);
    });
  }
}

TEST(LayoutHash, TellsLayoutsApart) {
  const auto program = [](std::int64_t elements, std::string_view name, StageKind stage, Space space) {
    return hash(rehearse([&](Context& context) {
      context.phase(Phase::step, [&] {
        const auto open = context.stage(stage, 1);
        const Tensor a = context.allocate({.name = name, .shape = {elements}, .space = space});
      });
    }));
  };
  const std::uint64_t one = program(5, "a", StageKind::layer, Space::device);
  EXPECT_EQ(program(5, "a", StageKind::layer, Space::device), one);
  EXPECT_NE(program(6, "a", StageKind::layer, Space::device), one);
  EXPECT_NE(program(5, "b", StageKind::layer, Space::device), one);
  EXPECT_NE(program(5, "a", StageKind::again, Space::device), one);
  EXPECT_NE(program(5, "a", StageKind::layer, Space::host), one);
  Layout moved = rehearse([](Context& context) {
    context.phase(Phase::step, [&] { const Tensor a = context.allocate({.name = "a", .shape = {1}}); });
  });
  const std::uint64_t before = hash(moved);
  moved.phase_offsets[0][0] += 256;
  EXPECT_NE(hash(moved), before);
}

}  // namespace
}  // namespace headroom
