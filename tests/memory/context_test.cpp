#include "headroom/memory/context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>

#include "memory/rehearsed.h"

namespace headroom {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Allocation floats(std::string_view name, std::int64_t count, Lifetime lifetime = Lifetime::phase) {
  return {.name = name, .category = Category::activations, .shape = {count}, .lifetime = lifetime};
}

std::string message_of(const std::function<void()>& action, ErrorKind kind = ErrorKind::runtime) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(Context, RunsWhatItRehearsed) {
  int arithmetic = 0;
  const auto program = [&](Context& context) {
    context.phase(Phase::step, [&] {
      const Tensor a = context.allocate(floats("a", 100));
      context.run([&](const Stream&) {
        ++arithmetic;
        a.data<float>()[99] = 1;
      });
      Tensor b = context.allocate(floats("b", 50));
      EXPECT_EQ(a.view().raw() == nullptr, context.phantom());
    });
  };
  run_rehearsed(program);
  EXPECT_EQ(arithmetic, 1);  // the rehearsal runs none
}

TEST(Context, PlannedIsReserved) {
  const auto program = [](Context& context) {
    Tensor weight;
    context.phase(Phase::load, [&] { weight = context.allocate(floats("weight", 1000, Lifetime::run)); });
    context.phase(Phase::evaluate, [&] { const Tensor a = context.allocate(floats("a", 10)); });
    context.phase(Phase::step, [&] {
      Tensor a = context.allocate(floats("a", 500));
      a.free();
      const Tensor b = context.allocate(floats("b", 600));  // takes a's place
      const Tensor staged = context.allocate({.name = "staged", .shape = {30}, .space = Space::host});
    });
  };
  const Layout layout = rehearse(program);
  EXPECT_EQ(layout.reserved(Space::device), 4096 + 2560);  // the weight, then the largest phase
  EXPECT_EQ(layout.reserved(Space::host), 256);
  CpuBackend backend(1);
  Context context(backend, layout);
  EXPECT_EQ(backend.reserved_bytes(Space::device), layout.reserved(Space::device));
  program(context);
  EXPECT_EQ(backend.reserved_bytes(Space::device), layout.reserved(Space::device));
  EXPECT_EQ(context.ledger().usage(Space::device).peak_bytes, 4000 + 2400);
}

TEST(Context, ADepartureNamesBothSides) {
  std::int64_t count = 100;
  bool extra = false;
  bool skip = false;
  const auto program = [&](Context& context) {
    context.phase(Phase::step, [&] {
      const auto stage = context.stage(StageKind::forward);
      const Tensor a = context.allocate(floats("hidden", count));
      if (extra) static_cast<void>(context.allocate(floats("surprise", 1)));
      if (!skip) static_cast<void>(context.allocate(floats("second", 1)));
    });
  };
  CpuBackend backend(1);
  Context context(backend, rehearse(program));
  program(context);
  count = 200;
  EXPECT_THAT(message_of([&] { program(context); }),
              AllOf(HasSubstr("phase 'step'"), HasSubstr("event 1"), HasSubstr("400 bytes"),
                    HasSubstr("800 bytes"), HasSubstr("in forward")));
  count = 100;
  extra = true;
  EXPECT_THAT(message_of([&] { program(context); }), AllOf(HasSubstr("second"), HasSubstr("surprise")));
  extra = false;
  skip = true;
  EXPECT_THAT(message_of([&] { program(context); }), AllOf(HasSubstr("second"), HasSubstr("free hidden")));
  skip = false;
  program(context);  // each failed phase was undone: the context still works
  EXPECT_THAT(message_of([&] { context.phase(Phase::save, [] {}); }),
              AllOf(HasSubstr("'save' was not rehearsed"), HasSubstr("step")));
}

TEST(Context, ARunThatStopsEarlyDeparts) {
  bool all = true;
  const auto program = [&](Context& context) {
    context.phase(Phase::step, [&] {
      static_cast<void>(context.allocate(floats("a", 1)));
      if (all) static_cast<void>(context.allocate(floats("b", 1)));
    });
  };
  const Layout layout = rehearse(program);
  CpuBackend backend(1);
  Context context(backend, layout);
  all = false;
  EXPECT_THAT(message_of([&] { program(context); }),
              AllOf(HasSubstr("allocate b"), HasSubstr("the run ends")));
}

TEST(Context, ARehearsalHoldsItselfToItsFirstTime) {
  Context context(DeviceDescription{.name = "made up"});
  std::int64_t count = 1;
  const auto step = [&] {
    context.phase(Phase::step, [&] { static_cast<void>(context.allocate(floats("a", count))); });
  };
  step();
  step();
  count = 2;
  EXPECT_THAT(message_of(step), HasSubstr("departs"));
}

TEST(Context, FreedOutOfOrderIsADeparture) {
  bool swap = false;
  const auto program = [&](Context& context) {
    context.phase(Phase::step, [&] {
      Tensor a = context.allocate(floats("a", 100));
      Tensor b = context.allocate(floats("b", 100));
      (swap ? b : a).free();
      (swap ? a : b).free();
    });
  };
  CpuBackend backend(1);
  Context context(backend, rehearse(program));
  swap = true;
  EXPECT_THAT(message_of([&] { program(context); }), AllOf(HasSubstr("free a"), HasSubstr("free b")));
}

TEST(Context, WhatADestructorFindsComesOutLater) {
  bool late = false;
  const auto program = [&](Context& context) {
    context.phase(Phase::step, [&] {
      Tensor outer;
      {
        Tensor inner = context.allocate(floats("a", 100));
        if (late) outer = std::move(inner);
      }  // rehearsed: freed here
      const Tensor b = context.allocate(floats("b", 100));
    });
  };
  CpuBackend backend(1);
  Context context(backend, rehearse(program));
  late = true;
  EXPECT_THAT(message_of([&] { program(context); }), AllOf(HasSubstr("free a"), HasSubstr("allocate b")));
}

TEST(Context, LeaksDoubleFreesAndStraysAreCaught) {
  Context context(DeviceDescription{.name = "made up"});
  Tensor leaked;
  EXPECT_THAT(message_of([&] {
                context.phase(Phase::step, [&] { leaked = context.allocate(floats("activation", 7)); });
              }),
              AllOf(HasSubstr("leaks activation"), HasSubstr("28 bytes")));
  leaked = Tensor();  // its block is gone already; nothing happens
  EXPECT_EQ(context.ledger().usage(Space::device).live_bytes, 0);

  context.phase(Phase::step, [&] {
    Tensor a = context.allocate(floats("a", 7));
    a.free();
    EXPECT_THAT(message_of([&] { a.free(); }, ErrorKind::input), HasSubstr("freed already"));
  });
  EXPECT_THAT(message_of([&] { static_cast<void>(context.allocate(floats("a", 7))); }),
              HasSubstr("outside of a phase"));
  EXPECT_THAT(message_of([&] { static_cast<void>(context.stage(StageKind::attention)); }),
              HasSubstr("outside of a phase"));
  EXPECT_THAT(message_of([&] { context.phase(Phase::step, [&] { context.phase(Phase::save, [] {}); }); }),
              HasSubstr("'save' begins inside phase 'step'"));
  Tensor weight;
  context.phase(Phase::load, [&] { weight = context.allocate(floats("weight", 7, Lifetime::run)); });
  EXPECT_THAT(message_of([&] { context.phase(Phase::update, [&] { weight.free(); }); }),
              HasSubstr("lives for the run"));
}

TEST(Context, AnInterruptedPhaseIsUndone) {
  bool interrupt = false;
  int saved = 0;
  Tensor weight;
  const auto program = [&](Context& context) {
    context.phase(Phase::load, [&] { weight = context.allocate(floats("weight", 10, Lifetime::run)); });
    const auto step = [&] {
      context.phase(Phase::step, [&] {
        const auto stage = context.stage(StageKind::forward);
        const Tensor a = context.allocate(floats("a", 100));
        if (interrupt) throw std::runtime_error("interrupted");
        const Tensor b = context.allocate(floats("b", 100));
      });
    };
    if (interrupt) {
      EXPECT_THROW(step(), std::runtime_error);
    } else {
      step();
    }
    context.phase(Phase::save, [&] {
      const Tensor copy = context.allocate({.name = "copy", .shape = {10}, .space = Space::host});
      context.run([&](const Stream&) { ++saved; });
    });
    interrupt = false;
    step();
    weight = Tensor();
  };
  const Layout layout = rehearse(program);
  CpuBackend backend(1);
  Context context(backend, layout);
  interrupt = true;
  program(context);
  EXPECT_EQ(saved, 1);
  EXPECT_EQ(context.ledger().usage(Space::device).live_bytes, 0);
}

TEST(Context, AStageThatIsLeftOpenEndsWithItsPhase) {
  Context context({.name = "made up"});
  std::unique_ptr<Context::OpenStage> left_open;
  EXPECT_THROW(context.phase(Phase::step,
                             [&] {
                               left_open.reset(new Context::OpenStage(context.stage(StageKind::loss)));
                               throw std::runtime_error("in the middle");
                             }),
               std::runtime_error);
  context.phase(Phase::step, [&] { const Tensor a = context.allocate(floats("a", 1)); });
  const Ledger& ledger = context.ledger();
  ASSERT_EQ(ledger.phases().size(), 1U);
  EXPECT_TRUE(ledger.stage_path(ledger.phases()[0].events[0].stage).empty());
}

TEST(Context, SideStreamsHaveToWait) {
  const auto in_phase = [](const std::function<void(Context&, Tensor&, Tensor&)>& body) {
    Context context(DeviceDescription{.name = "made up"});
    return message_of([&] {
      context.phase(Phase::step, [&] {
        Tensor device = context.allocate(floats("block", 8));
        Tensor host = context.allocate({.name = "host", .shape = {8}, .space = Space::host});
        body(context, device, host);
      });
    });
  };
  EXPECT_THAT(in_phase([](Context& c, Tensor& d, Tensor& h) { c.copy(StreamId::copy, d, h); }),
              AllOf(HasSubstr("stream copy"), HasSubstr("without having waited for main")));
  EXPECT_THAT(in_phase([](Context& c, Tensor& d, Tensor& h) {
                c.wait(StreamId::copy, c.record(StreamId::main));
                c.copy(StreamId::copy, d, h);
                d.free();
              }),
              AllOf(HasSubstr("'block' is freed while"), HasSubstr("let main wait")));
  EXPECT_THAT(in_phase([](Context& c, Tensor& d, Tensor& h) {
                c.wait(StreamId::copy, c.record(StreamId::main));
                d.free();
                c.copy(StreamId::copy, d, h);
              }),
              HasSubstr("was freed"));
  EXPECT_THAT(in_phase([](Context& c, Tensor& d, Tensor& h) {
                c.copy(StreamId::main, d, h);
                h.free();  // main may still read it
              }),
              AllOf(HasSubstr("'host' is freed while"), HasSubstr("let the host wait")));
  // A block of the run is not freed in the phase, but the phase may not end under the copy either; and in
  // every phase the stream waits for main first, which may have written the block in the phase before.
  Context context(DeviceDescription{.name = "made up"});
  Tensor weight;
  context.phase(Phase::load, [&] { weight = context.allocate(floats("weight", 8, Lifetime::run)); });
  EXPECT_THAT(message_of([&] {
                context.phase(Phase::step, [&] {
                  context.wait(StreamId::communication, context.record(StreamId::main));
                  context.run_on(StreamId::communication, {&weight}, [](const Stream&) {});
                });
              }),
              HasSubstr("another stream may still work"));
}

TEST(Context, TheHostWaitsBeforeItUsesHostMemory) {
  Context context(DeviceDescription{.name = "made up"});
  const auto message = [&](Phase phase, const std::function<void()>& body) {
    return message_of([&] { context.phase(phase, body); });
  };
  Tensor weight;
  Tensor value;
  context.phase(Phase::load, [&] {
    weight = context.allocate(floats("weight", 8, Lifetime::run));
    value =
        context.allocate({.name = "value", .shape = {8}, .space = Space::host, .lifetime = Lifetime::run});
    static_cast<void>(context.host_elements<float>(value));
  });
  EXPECT_THAT(message(Phase::forward,
                      [&] {
                        const Ticket before = context.record(StreamId::main);
                        context.copy(StreamId::main, value, weight);
                        context.wait_on_host(before);
                        static_cast<void>(context.host_elements<float>(value));
                      }),
              AllOf(HasSubstr("the host reads or writes 'value'"), HasSubstr("let the host wait")));
  EXPECT_THAT(message(Phase::update, [&] { context.copy(StreamId::main, value, weight); }),
              AllOf(HasSubstr("phase 'update' ends"), HasSubstr("'value' in host memory")));
  EXPECT_THAT(message(Phase::evaluate, [&] { static_cast<void>(context.host_elements<float>(weight)); }),
              HasSubstr("'weight', which is in device memory"));
  context.phase(Phase::save, [&] {
    context.copy(StreamId::main, value, weight);
    context.wait_on_host(context.record(StreamId::main));
    EXPECT_TRUE(context.host_elements<float>(value).empty());
  });
  static_cast<void>(context.host_elements<float>(value));  // between phases it is the host's
}

TEST(Context, CopiesPartsOfTensors) {
  const auto program = [](Context& context, std::vector<float>& result) {
    context.phase(Phase::step, [&] {
      const Tensor from = context.allocate({.name = "from", .shape = {2, 5}});
      const Tensor to = context.allocate({.name = "to", .shape = {8}});
      context.run([&](const Stream&) {
        for (int i = 0; i < 10; ++i) from.data<float>()[i] = static_cast<float>(i);
        std::fill_n(to.data<float>(), 8, -1.0F);
      });
      context.wait(StreamId::copy, context.record(StreamId::main));
      context.copy(StreamId::copy, {to, 1, 4}, {from, 3, 4});
      context.wait(StreamId::main, context.record(StreamId::copy));
      context.run([&](const Stream&) { result.assign(to.data<float>(), to.data<float>() + 8); });
      const auto refused = [&](const TensorPart& target, const TensorPart& source) {
        return message_of([&] { context.copy(StreamId::copy, target, source); }, ErrorKind::input);
      };
      EXPECT_THAT(refused({to, 5, 4}, {from, 0, 4}), HasSubstr("passes the end"));
      EXPECT_THAT(refused({to, 0, 4}, {from, 0, 3}), HasSubstr("of one size"));
    });
  };
  CpuBackend backend(1);
  Context phantom(backend.description());
  std::vector<float> result;
  program(phantom, result);
  EXPECT_TRUE(result.empty());
  Context context(backend, make_layout(phantom.ledger()));
  program(context, result);
  EXPECT_THAT(result, testing::ElementsAre(-1, 3, 4, 5, 6, -1, -1, -1));
}

TEST(Context, AStreamThatDidNotWaitInThisPhaseIsRefused) {
  Context context(DeviceDescription{.name = "made up"});
  Tensor weight;
  Ticket old;
  context.phase(Phase::load, [&] {
    weight = context.allocate(floats("weight", 8, Lifetime::run));
    old = context.record(StreamId::main);
  });
  EXPECT_THAT(message_of([&] {
                context.phase(Phase::save,
                              [&] { context.run_on(StreamId::copy, {&weight}, [](const Stream&) {}); });
              }),
              HasSubstr("without having waited for main"));
  EXPECT_THAT(message_of([&] { context.phase(Phase::update, [&] { context.wait(StreamId::copy, old); }); }),
              HasSubstr("record of another phase"));
  EXPECT_THAT(message_of([&] { context.phase(Phase::step, [&] {
                                 context.wait(StreamId::copy, {7, 99});
                               }); }),
              HasSubstr("record of another phase"));
  EXPECT_THAT(message_of([&] { static_cast<void>(context.record(StreamId::copy)); }),
              HasSubstr("outside of a phase"));
  EXPECT_THAT(message_of([&] { context.phase(Phase::evaluate, [&] { context.wait_on_host(old); }); }),
              HasSubstr("the host waits for a record of another phase"));
  EXPECT_THAT(message_of([&] { context.wait_on_host(old); }), HasSubstr("outside of a phase"));
  EXPECT_THAT(message_of([&] { context.phase(Phase::backward, [&] { context.synchronize(); }); }),
              HasSubstr("synchronize is called in phase 'backward'"));
}

TEST(Context, AnExceptionCaughtInsideAPhaseIsPartOfTheTrace) {
  const auto program = [](Context& context) {
    context.phase(Phase::step, [&] {
      const Tensor keep = context.allocate(floats("keep", 64));
      context.run([&](const Stream&) { keep.data<float>()[0] = 1; });
      try {
        const auto stage = context.stage(StageKind::again);
        const Tensor work = context.allocate(floats("work", 64));
        context.run([&](const Stream&) { work.data<float>()[0] = 7; });
        throw std::runtime_error("did not work");
      } catch (const std::runtime_error&) {
        // plan B
      }
      const Tensor other = context.allocate(floats("other", 64));
      context.run([&](const Stream&) {
        other.data<float>()[0] = 9;
        EXPECT_EQ(keep.data<float>()[0], 1);
      });
    });
  };
  EXPECT_EQ(rehearse(program).reserved(Space::device), 512);
  run_rehearsed(program);
}

TEST(Context, AnExceptionWaitsForWorkThatIsStillRunning) {
  static std::atomic<bool> finished;
  finished = false;
  bool interrupt = false;
  const auto program = [&](Context& context) {
    context.phase(Phase::step, [&] {
      const Tensor a = context.allocate(floats("a", 64));
      context.wait(StreamId::copy, context.record(StreamId::main));
      float* data = a.data<float>();
      context.run_on(StreamId::copy, {&a}, [data](const Stream&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        data[0] = 1;  // a sanitizer sees it if the block is gone
        finished = true;
      });
      if (interrupt) throw std::runtime_error("interrupted");
      context.wait(StreamId::main, context.record(StreamId::copy));
    });
  };
  CpuBackend backend(1);
  Context context(backend, rehearse(program));
  interrupt = true;
  EXPECT_THROW(program(context), std::runtime_error);
  EXPECT_TRUE(finished);
  interrupt = false;
  program(context);
}

TEST(Context, AssigningToATensorGivesItsBlockBackAtOnce) {
  Context context(DeviceDescription{.name = "made up"});
  context.phase(Phase::step, [&] {
    Tensor a = context.allocate(floats("a", 100));
    Tensor b = context.allocate(floats("b", 10));
    a = std::move(b);
    EXPECT_EQ(context.ledger().usage(Space::device).live_bytes, 40);
  });
}

TEST(Context, ARefusedFreeLeavesTheTensorAsItWas) {
  Context context(DeviceDescription{.name = "made up"});
  context.phase(Phase::step, [&] {
    Tensor a = context.allocate(floats("a", 100));
    context.wait(StreamId::copy, context.record(StreamId::main));
    context.run_on(StreamId::copy, {&a}, [](const Stream&) {});
    EXPECT_THROW(a.free(), Error);
    context.wait(StreamId::main, context.record(StreamId::copy));
    a.free();
  });
}

TEST(Context, RunsInMemoryThatIsHandedOver) {
  const auto program = [](Context& context) {
    context.phase(Phase::step, [&] {
      const Tensor a = context.allocate(floats("a", 64));
      context.run([&](const Stream&) { a.data<float>()[0] = 42; });
    });
  };
  const Layout layout = rehearse(program);
  CpuBackend backend(1);
  alignas(256) static float memory[64];
  alignas(256) static float too_small[32];
  Context context(backend, layout, Arena(backend, Space::device, memory, sizeof memory), Arena());
  program(context);
#if defined(NDEBUG)  // a debug build has poisoned it again
  EXPECT_EQ(memory[0], 42);
#endif
  EXPECT_THAT(message_of(
                  [&] {
                    Context small(backend, layout, Arena(backend, Space::device, too_small, sizeof too_small),
                                  Arena());
                  },
                  ErrorKind::memory),
              AllOf(HasSubstr("128 bytes"), HasSubstr("256")));
  EXPECT_THAT(message_of([&] { Arena(backend, Space::device, memory + 1, 128); }, ErrorKind::input),
              HasSubstr("not aligned to 256"));
  EXPECT_THAT(message_of([&] { Arena(backend, Space::device, nullptr, 128); }, ErrorKind::input),
              HasSubstr("is no memory"));
}

TEST(Context, OverflowingShapesAreRefusedBeforeAnythingHappens) {
  Context context(DeviceDescription{.name = "made up"});
  context.phase(Phase::step, [&] {
    EXPECT_THROW(static_cast<void>(context.allocate(floats("a", -1))), Error);
    EXPECT_THROW(static_cast<void>(context.allocate(floats("a", std::int64_t{1} << 62))), Error);
    EXPECT_THROW(static_cast<void>(context.allocate({.name = "a", .shape = {1LL << 32, 1LL << 32}})), Error);
  });
  EXPECT_TRUE(context.ledger().phases()[0].events.empty());
}

// A device with a clock of its own: every mark is a second after the one before.
class CountingBackend final : public CpuBackend {
 public:
  CountingBackend() : CpuBackend(1) {}
  void mark(std::uint32_t number) override {
    if (marks_.size() <= number) marks_.resize(number + std::size_t{1});
    marks_[number] = ++now_;
  }
  [[nodiscard]] double seconds_between(std::uint32_t from, std::uint32_t to) override {
    return marks_.at(to) - marks_.at(from);
  }

 private:
  std::vector<int> marks_;
  int now_ = 0;
};

TEST(Context, TheDeviceMeasuresTheWork) {
  const auto program = [](Context& context) {
    context.phase(Phase::step, [&] {
      context.run(Work{.kernel = "first"}, [](const Stream&) {});
      try {
        context.run(Work{.kernel = "second"}, [](const Stream&) { throw std::runtime_error("caught"); });
      } catch (const std::runtime_error&) {
      }
      context.run(Work{.kernel = "outer"},
                  [&](const Stream&) { context.run(Work{.kernel = "inner"}, [](const Stream&) {}); });
    });
  };
  CountingBackend backend;
  Context context(backend, rehearse(program));
  program(context);
  EXPECT_EQ(context.work(Phase::step)[0].runs, 1);
  EXPECT_EQ(context.work_seconds(), 0);  // nobody asked
  context.measure_work();
  for (int i = 0; i < 3; ++i) program(context);
  const std::span<const WorkRecord> work = context.work(Phase::step);
  ASSERT_EQ(work.size(), 4U);
  EXPECT_EQ(work[0].runs, 4);
  EXPECT_EQ(work[0].seconds, 3);
  EXPECT_EQ(work[1].seconds, 3);
  EXPECT_EQ(work[1].last_seconds, 1);
  EXPECT_NEAR(work[1].began - work[0].began, 2, 1e-6);  // added to the host's clock
  EXPECT_EQ(work[2].seconds, 9);                        // the work inside it too
  EXPECT_EQ(work[3].seconds, 3);
  std::vector<std::size_t> pieces;
  const auto note = [&](std::size_t piece) { pieces.push_back(piece); };
  EXPECT_EQ(context.device_seconds(3, note), (std::vector<double>{1, 1, 1}));
  EXPECT_THAT(pieces, testing::ElementsAre(0, 1, 2));
  EXPECT_THROW(static_cast<void>(context.device_seconds(Context::kMostTimed + 1, note)), Error);
}

}  // namespace
}  // namespace headroom
