#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

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

// A rehearsal of one of three ranks that has two tensors of 100 elements.
template <class Body>
Ledger exchanging(const Body& body) {
  Context context(DeviceDescription{.name = "made up"}, {1, 3});
  context.phase(Phase::step, [&] {
    const Tensor a = context.allocate({.name = "a", .shape = {100}});
    const Tensor b = context.allocate({.name = "b", .shape = {100}});
    body(context, a, b);
  });
  return std::move(context).take_ledger();
}

Ticket ring_step(Context& context, const TensorPart& from, const TensorPart& to) {
  const std::array sends = {Parcel{2, from}};
  const std::array receives = {Parcel{0, to}};
  return context.exchange(sends, receives, {"ring step", 1});
}

TEST(Exchange, IsInTheLedgerAndInTheWork) {
  const Ledger ledger = exchanging([](Context& context, const Tensor& a, const Tensor& b) {
    context.wait(StreamId::main, ring_step(context, {a, 10, 20}, {b, 0, 5}));
    const std::span<const WorkRecord> work = context.work(Phase::step);
    ASSERT_EQ(work.size(), 1U);
    EXPECT_EQ(work[0].work.kind, WorkKind::communication);
    EXPECT_EQ(work[0].work.bytes, 80);
    EXPECT_EQ(work[0].work.sent_bytes, 80);
    EXPECT_EQ(work[0].work.received_bytes, 20);
  });
  std::vector<std::string> told;
  for (const Event& event : ledger.phases()[0].events) told.push_back(ledger.describe(event));
  EXPECT_THAT(told,
              testing::IsSupersetOf({"send 80 bytes of a to rank 2", "receive 20 bytes of b from rank 0"}));
}

TEST(Exchange, SlicesAreThoseOfTheRanks) {
  exchanging([](Context& context, const Tensor& a, const Tensor& b) {
    const std::array<std::int64_t, 3> counts = {50, 20, 30};
    context.wait(StreamId::main, context.all_gather(a, counts));
    context.wait(StreamId::main, context.all_to_all(b, counts, a, std::array<std::int64_t, 3>{0, 20, 80}));
    context.reduce_scatter(a, counts);
    const std::span<const WorkRecord> work = context.work(Phase::step);
    ASSERT_EQ(work.size(), 4U);
    EXPECT_EQ(work[0].work.sent_bytes, 2 * 80);
    EXPECT_EQ(work[0].work.received_bytes, 320);
    EXPECT_EQ(work[1].work.kind, WorkKind::kernel);  // within one space
    EXPECT_EQ(work[1].stream, StreamId::main);
    EXPECT_EQ(work[2].stream, StreamId::communication);
    EXPECT_EQ(work[2].work.sent_bytes, 320);
    EXPECT_EQ(work[2].work.received_bytes, 320);
    EXPECT_EQ(work[3].work.sent_bytes, 320);
    EXPECT_EQ(work[3].work.received_bytes, 2 * 80);
    for (const auto& wrong : {std::vector<std::int64_t>{50, 50}, {50, 20, 31}, {-1, 51, 50}}) {
      EXPECT_THROW(context.all_gather(a, wrong), Error);
      EXPECT_THROW(context.reduce_scatter(a, wrong), Error);
    }
  });
}

// Rank 1 of 3 has its 20 elements in another tensor.
TEST(Exchange, OwnSliceMayBeElsewhere) {
  const Ledger ledger = exchanging([](Context& context, const Tensor& a, const Tensor& b) {
    const std::array<std::int64_t, 3> counts = {50, 20, 30};
    context.wait(StreamId::main, context.all_gather(a, counts, {b, 5, 20}, {"gathering"}));
    const std::span<const WorkRecord> work = context.work(Phase::step);
    ASSERT_EQ(work.size(), 1U);
    EXPECT_EQ(work[0].work.sent_bytes, 2 * 80);
    EXPECT_EQ(work[0].work.received_bytes, 320);
    EXPECT_THROW(context.all_gather(a, counts, {b, 5, 21}, {"gathering"}), Error);
  });
  std::vector<std::string> told;
  for (const Event& event : ledger.phases()[0].events) told.push_back(ledger.describe(event));
  EXPECT_THAT(told, testing::IsSupersetOf({"send 80 bytes of b to rank 0", "send 80 bytes of b to rank 2",
                                           "receive 200 bytes of a from rank 0",
                                           "receive 120 bytes of a from rank 2"}));
}

TEST(Exchange, EmptySlicesAreNotSent) {
  const Ledger ledger = exchanging([](Context& context, const Tensor& a, const Tensor&) {
    context.wait(StreamId::main, context.all_gather(a, std::array<std::int64_t, 3>{100, 0, 0}));
  });
  std::vector<std::string> told;
  for (const Event& event : ledger.phases()[0].events) told.push_back(ledger.describe(event));
  EXPECT_THAT(told, testing::Contains("receive 400 bytes of a from rank 0"));
  EXPECT_THAT(told, testing::Not(testing::Contains(testing::HasSubstr("send "))));
  EXPECT_THAT(told, testing::Not(testing::Contains(testing::HasSubstr("from rank 2"))));
}

// The first half is an exchange, the second a kernel on main. Rank 1 of 3 sends 80 elements and receives its
// own 20 from both others.
TEST(SumInFlight, IsAnExchangeAndAKernel) {
  const std::array<std::int64_t, 3> counts = {50, 20, 30};
  const Ledger ledger = exchanging([&](Context& context, const Tensor& a, const Tensor&) {
    SumInFlight sum = context.start_reduce_scatter(a, counts);
    EXPECT_EQ(sum.parts.view().elements(), 40);
    context.finish_reduce_scatter(a, counts, std::move(sum));
    const std::span<const WorkRecord> work = context.work(Phase::step);
    ASSERT_EQ(work.size(), 2U);
    EXPECT_EQ(work[0].work.kind, WorkKind::communication);
    EXPECT_EQ(work[0].work.workspace_bytes, 0);
    EXPECT_EQ(work[0].work.sent_bytes, 320);
    EXPECT_EQ(work[0].work.received_bytes, 2 * 80);
    EXPECT_EQ(work[1].work.kind, WorkKind::kernel);
    EXPECT_EQ(work[1].work.bytes, 4 * 80);  // three parts are read, the sum is written
    for (const auto& wrong : {std::vector<std::int64_t>{50, 50}, {50, 20, 31}, {-1, 51, 50}}) {
      EXPECT_THROW(static_cast<void>(context.start_reduce_scatter(a, wrong)), Error);
    }
  });
  std::vector<std::string> told;
  for (const Event& event : ledger.phases()[0].events) told.push_back(ledger.describe(event));
  EXPECT_THAT(told, testing::IsSupersetOf({"send 200 bytes of a to rank 0", "send 120 bytes of a to rank 2",
                                           "receive 80 bytes of parts of a sum from rank 0",
                                           "receive 80 bytes of parts of a sum from rank 2"}));
  EXPECT_EQ(ledger.usage(Space::device).peak_bytes, 2 * 400 + 160);
}

TEST(SumInFlight, OfARankWithoutASliceHasNoParts) {
  const Ledger ledger = exchanging([](Context& context, const Tensor& a, const Tensor&) {
    const std::array<std::int64_t, 3> counts = {50, 0, 50};
    context.finish_reduce_scatter(a, counts, context.start_reduce_scatter(a, counts));
    const std::span<const WorkRecord> work = context.work(Phase::step);
    ASSERT_EQ(work.size(), 1U);
    EXPECT_EQ(work[0].work.sent_bytes, 400);
    EXPECT_EQ(work[0].work.received_bytes, 0);
  });
  EXPECT_EQ(std::ranges::count(ledger.phases()[0].events, EventKind::receive, &Event::kind), 0);
}

TEST(SumInFlight, OfOneRankIsRecordedNowhere) {
  run_rehearsed([](Context& context) {
    context.phase(Phase::step, [&] {
      const Tensor a = context.allocate({.name = "a", .shape = {10}});
      const std::array<std::int64_t, 1> counts = {10};
      context.finish_reduce_scatter(a, counts, context.start_reduce_scatter(a, counts));
      EXPECT_TRUE(context.work(Phase::step).empty());
    });
    EXPECT_EQ(context.ledger().phases()[0].events.size(), 2U);
  });
}

TEST(SumInFlight, HoldsItsBuffers) {
  const std::array<std::int64_t, 3> counts = {50, 20, 30};
  EXPECT_THAT(
      [&] {
        exchanging([&](Context& context, const Tensor&, const Tensor&) {
          Tensor values = context.allocate({.name = "values", .shape = {100}});
          SumInFlight sum = context.start_reduce_scatter(values, counts);
          values.free();
        });
      },
      testing::ThrowsMessage<Error>(
          testing::HasSubstr("'values' is freed while a stream may still work on it")));
  EXPECT_THAT(
      [&] {
        exchanging([&](Context& context, const Tensor& a, const Tensor&) {
          SumInFlight sum = context.start_reduce_scatter(a, counts);
          sum.parts.free();
        });
      },
      testing::ThrowsMessage<Error>(
          testing::HasSubstr("'parts of a sum' is freed while a stream may still work on it")));
}

// Exchanges under way are in no order, so none may need what another receives.
TEST(Exchange, PartsInFlightAreNotUsedAgain) {
  const auto refused = [](auto&& body) {
    try {
      exchanging([&](Context& context, const Tensor& a, const Tensor& b) {
        const Ticket first = ring_step(context, {a, 0, 50}, {b, 0, 50});
        body(context, a, b, first);
      });
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  const auto sends_b = [](Context& context, const Tensor& a, const Tensor& b, Ticket) {
    context.wait(StreamId::main, ring_step(context, {b, 49, 1}, {a, 50, 50}));
  };
  EXPECT_EQ(refused(sends_b), "an exchange sends 'b' while one under way receives it; wait for that first");
  EXPECT_EQ(refused([](Context& context, const Tensor& a, const Tensor& b, Ticket) {
              context.wait(StreamId::main, ring_step(context, {b, 50, 50}, {a, 49, 1}));
            }),
            "an exchange receives 'a' while one under way sends it; wait for that first");
  EXPECT_EQ(refused([&](Context& context, const Tensor& a, const Tensor& b, Ticket first) {
              context.wait(StreamId::main, first);
              sends_b(context, a, b, first);
            }),
            "");
  EXPECT_EQ(refused([](Context& context, const Tensor& a, const Tensor& b, Ticket) {  // other parts
              context.wait(StreamId::main, ring_step(context, {a, 0, 100}, {b, 50, 50}));
            }),
            "");
  EXPECT_THAT(refused([](Context&, const Tensor&, const Tensor&, Ticket) {}),
              testing::HasSubstr("'b' is freed while a stream may still work on it"));
}

TEST(Exchange, ABufferInFlightIsNotFreed) {
  EXPECT_THAT(
      [] {
        exchanging([](Context& context, const Tensor& a, const Tensor&) {
          Tensor target = context.allocate({.name = "target", .shape = {10}});
          const Ticket arrived = ring_step(context, {a, 0, 10}, {target, 0, 10});
          target.free();
          context.wait(StreamId::main, arrived);
        });
      },
      testing::ThrowsMessage<Error>(
          testing::HasSubstr("'target' is freed while a stream may still work on it")));
}

TEST(Exchange, OneRankHasNobodyToSendTo) {
  run_rehearsed([](Context& context) {
    context.phase(Phase::step, [&] {
      const Tensor a = context.allocate({.name = "a", .shape = {10}});
      context.wait(StreamId::main, context.exchange({}, {}, {"ring step", 0}));
      context.wait(StreamId::main, context.all_gather(a, std::array<std::int64_t, 1>{10}));
      const std::array sends = {Parcel{0, {a, 0, 10}}};
      EXPECT_THROW(context.exchange(sends, {}, {"ring step", 0}), Error);
      EXPECT_TRUE(context.work(Phase::step).empty());
    });
  });
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
