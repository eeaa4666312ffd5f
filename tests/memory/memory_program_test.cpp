// The small real program, rehearsed and run: the proof of the whole memory room.
#include "memory_program.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "headroom/core/random.h"
#include "memory/heap_counter.h"
#include "memory/rehearsed.h"

namespace headroom {
namespace {

std::filesystem::path temporary_file() {
  return std::filesystem::temp_directory_path() / ("headroom-program-" + std::to_string(getpid()) + ".bin");
}

Layout rehearse_program() {
  return rehearse([](Context& context) {
    MemoryProgram program(context, {});
    program.step();
    program.save({});
  });
}

TEST(MemoryProgram, LedgersAreEqualEventByEvent) {
  const Layout layout = rehearse_program();
  CpuBackend backend(2);
  Context context(backend, layout);
  MemoryProgram program(context, {});
  for (int i = 0; i < 3; ++i) program.step();
  program.save(temporary_file());
  std::filesystem::remove(temporary_file());

  const Ledger& rehearsed = layout.rehearsal;
  const Ledger& run = context.ledger();
  ASSERT_EQ(run.phases().size(), 4U);
  for (std::size_t p = 0; p < run.phases().size(); ++p) {
    EXPECT_EQ(run.phases()[p].phase, rehearsed.phases()[p].phase);
    ASSERT_EQ(run.phases()[p].events.size(), rehearsed.phases()[p].events.size());
    for (std::size_t i = 0; i < run.phases()[p].events.size(); ++i) {
      EXPECT_EQ(run.describe(run.phases()[p].events[i]), rehearsed.describe(rehearsed.phases()[p].events[i]));
      EXPECT_EQ(run.phases()[p].events[i], rehearsed.phases()[p].events[i])
          << "phase " << p << ", event " << i;
    }
  }
  for (const Space space : {Space::device, Space::host}) {
    EXPECT_EQ(backend.reserved_bytes(space), layout.reserved(space));  // asked of the system, over all calls
    EXPECT_EQ(run.usage(space).peak_bytes, rehearsed.usage(space).peak_bytes);
    EXPECT_EQ(run.usage(space).peak, rehearsed.usage(space).peak);
  }
}

TEST(MemoryProgram, LearnsAndHasTheSameBitsOnAnyThreadCount) {
  std::vector<float> expected;
  for (const int threads : {1, 2, 4}) {
    CpuBackend backend(threads);
    Context context(backend, rehearse_program());
    MemoryProgram program(context, {});
    const double first = program.step();
    double last = first;
    for (int i = 0; i < 19; ++i) last = program.step();
    EXPECT_LT(last, 0.6 * first);
    if (threads == 1) expected = program.parameters();
    EXPECT_EQ(program.parameters(), expected) << threads << " threads";
  }
}

TEST(MemoryProgram, TheHeapStaysStillAfterTheFirstStep) {
#if HEADROOM_HEAP_COUNTED
  CpuBackend backend(2);
  Context context(backend, rehearse_program());
  MemoryProgram program(context, {});
  program.step();
  program.save(temporary_file());
  const std::int64_t before = heap_bytes;
  heap_peak_bytes = before;
  for (int i = 0; i < 20; ++i) {
    program.step();
    program.save(temporary_file());
  }
  EXPECT_LT(heap_peak_bytes - before, 64 << 10);
  std::filesystem::remove(temporary_file());
  // The counter counts: as much on purpose is seen, also after it is gone.
  heap_peak_bytes = heap_bytes.load();
  const std::int64_t start = heap_bytes;
  { const std::vector<char> on_purpose(64 << 10); }
  EXPECT_GE(heap_peak_bytes - start, 64 << 10);
#else
  GTEST_SKIP() << "a sanitizer brings its own malloc";
#endif
}

TEST(MemoryProgram, SavesWhatItLearnedOrNothing) {
  const std::filesystem::path path = temporary_file();
  CpuBackend backend(2);
  Context context(backend, rehearse_program());
  MemoryProgram program(context, {});
  program.step();
  program.save(path);
  std::vector<float> saved(program.parameters().size());
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(saved.data()),
            static_cast<std::streamsize>(saved.size() * sizeof(float)));
  EXPECT_EQ(saved, program.parameters());
  EXPECT_EQ(std::filesystem::file_size(path), saved.size() * sizeof(float));
  std::filesystem::remove(path);
  // A folder that is not there: a clear error, and training goes on.
  EXPECT_THROW(program.save("no-such-folder/model.bin"), Error);
  program.step();
}

// Happens-before, built from the traces alone as a graph: events of one stream in order, and a record before
// what waits for it. Allocation, free and the host's waits are main's. Then every pair of blocks that share
// bytes, in one phase or in two: all that happens to one comes before all that happens to the other.
class HappensBefore {
 public:
  void add_phase(const std::vector<Event>& events) {
    std::map<std::uint32_t, std::size_t> record;
    for (const Event& event : events) {
      const std::size_t now = after_.size();
      after_.emplace_back();
      if (const auto previous = last_.find(event.stream); previous != last_.end())
        after_[previous->second].push_back(now);
      last_[event.stream] = now;
      if (event.kind == EventKind::record) record[event.id] = now;
      const bool waits = event.kind == EventKind::wait || event.kind == EventKind::wait_on_host;
      if (waits) after_[record.at(event.id)].push_back(now);
    }
  }
  [[nodiscard]] std::size_t size() const { return after_.size(); }

  // Everything that comes after an event.
  [[nodiscard]] std::vector<bool> reached(std::size_t first) const {
    std::vector<bool> seen(after_.size());
    std::vector<std::size_t> open = {first};
    while (!open.empty()) {
      const std::size_t at = open.back();
      open.pop_back();
      if (seen[at]) continue;
      seen[at] = true;
      open.insert(open.end(), after_[at].begin(), after_[at].end());
    }
    return seen;
  }

 private:
  std::vector<std::vector<std::size_t>> after_;
  std::map<StreamId, std::size_t> last_;
};

struct BlockUse {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  Space space = Space::device;
  std::vector<std::size_t> events;
};

struct SharedPairs {
  int pairs = 0;      // of blocks that share bytes
  int unordered = 0;  // pairs of events on them that nothing orders
};
SharedPairs shared_pairs(const std::vector<std::vector<Event>>& phases, const Layout& layout) {
  HappensBefore order;
  std::vector<BlockUse> uses;
  for (std::size_t p = 0; p < phases.size(); ++p) {
    std::map<std::uint32_t, BlockUse> blocks;
    for (std::size_t i = 0; i < phases[p].size(); ++i) {
      const Event& event = phases[p][i];
      const bool on_block = event.kind == EventKind::allocate || event.kind == EventKind::free ||
                            event.kind == EventKind::touch;
      if (!on_block || event.lifetime != Lifetime::phase) continue;
      BlockUse& use = blocks[event.id];
      use.begin = layout.phase_offsets[p][event.id];
      use.end = use.begin + event.bytes;
      use.space = event.space;
      use.events.push_back(order.size() + i);
    }
    order.add_phase(phases[p]);
    for (auto& [id, use] : blocks) uses.push_back(std::move(use));
  }
  SharedPairs found;
  for (std::size_t a = 0; a < uses.size(); ++a) {
    std::vector<std::vector<bool>> reached;
    for (const std::size_t event : uses[a].events) reached.push_back(order.reached(event));
    for (std::size_t b = a + 1; b < uses.size(); ++b) {
      if (uses[a].space != uses[b].space || uses[a].end <= uses[b].begin || uses[b].end <= uses[a].begin)
        continue;
      ++found.pairs;
      for (const std::vector<bool>& after : reached) {
        for (const std::size_t event : uses[b].events) found.unordered += !after[event];
      }
    }
  }
  return found;
}

std::vector<std::vector<Event>> traces(const Layout& layout) {
  std::vector<std::vector<Event>> phases;
  for (const Ledger::Trace& phase : layout.rehearsal.phases()) phases.push_back(phase.events);
  return phases;
}

// Staging for one tensor after another, each on the copy stream: blocks that share bytes and are used off
// main.
void staged_copies(Context& context) {
  Tensor weights[3];
  context.phase(Phase::load, [&] {
    for (Tensor& weight : weights) {
      weight = context.allocate({.name = "weight", .shape = {1000}, .lifetime = Lifetime::run});
    }
  });
  context.phase(Phase::save, [&] {
    for (const Tensor& weight : weights) {
      const Tensor staged = context.allocate({.name = "staged", .shape = {1000}, .space = Space::host});
      context.wait(StreamId::copy, context.record(StreamId::main));
      context.copy(StreamId::copy, staged, weight);
      context.wait(StreamId::main, context.record(StreamId::copy));
      context.wait_on_host(context.record(StreamId::main));
    }
  });
}

// Anything goes: allocations, frees, work on three streams, records and waits at random, over several phases.
// What the Context refuses does not happen; what it accepts has to be ordered.
void random_program(Context& context, std::uint64_t seed) {
  const Random random(seed);
  std::uint64_t draw = 0;
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random.below(draw++, bound)); };
  const auto stream = [&] { return static_cast<StreamId>(below(kStreamCount)); };
  const auto attempt = [](const auto& action) {
    try {
      action();
    } catch (const Error&) {
      // refused: not ordered yet
    }
  };
  for (const Phase phase : {Phase::load, Phase::step, Phase::save}) {
    context.phase(phase, [&] {
      std::vector<Tensor> tensors;
      std::vector<Ticket> tickets;
      for (int i = 0; i < 120; ++i) {
        const std::size_t what = below(10);
        if (what < 3 || tensors.empty()) {
          tensors.push_back(context.allocate({.name = "block",
                                              .dtype = DType::u8,
                                              .shape = {static_cast<std::int64_t>(1 + below(3000))},
                                              .space = below(3) == 0 ? Space::host : Space::device}));
        } else if (what < 5) {
          const std::size_t victim = below(tensors.size());
          attempt([&] {
            tensors[victim].free();
            tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(victim));
          });
        } else if (what < 7) {
          attempt([&] { context.run_on(stream(), {&tensors[below(tensors.size())]}, [](const Stream&) {}); });
        } else if (what == 7) {
          tickets.push_back(context.record(stream()));
        } else if (what == 8 && !tickets.empty()) {
          context.wait(stream(), tickets[below(tickets.size())]);
        } else if (below(8) == 0) {
          context.wait_on_host(context.record(stream()));
        }
      }
      for (const StreamId side : {StreamId::copy, StreamId::communication}) {
        context.wait(StreamId::main, context.record(side));
      }
      context.wait_on_host(context.record(StreamId::main));
    });
  }
}

TEST(StreamsAndOffsets, EveryPairThatSharesBytesIsOrdered) {
  int pairs = 0;
  for (const Layout& layout : {rehearse_program(), rehearse(staged_copies)}) {
    const SharedPairs found = shared_pairs(traces(layout), layout);
    EXPECT_EQ(found.unordered, 0);
    pairs += found.pairs;
  }
  EXPECT_GE(pairs, 4);  // there is something to check
}

TEST(StreamsAndOffsets, WhateverIsAcceptedIsOrdered) {
  int pairs = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Layout layout = rehearse([&](Context& context) { random_program(context, seed); });
    const SharedPairs found = shared_pairs(traces(layout), layout);
    ASSERT_EQ(found.unordered, 0) << "seed " << seed;
    pairs += found.pairs;
  }
  EXPECT_GT(pairs, 10'000);
}

TEST(StreamsAndOffsets, TheCheckerSeesAMissingWait) {
  const Layout layout = rehearse(staged_copies);
  std::vector<std::vector<Event>> phases = traces(layout);
  // Main does not wait for the first copy, so the host does not either, which waits for main: the copy's
  // staging goes to the second one while it may be running.
  std::vector<Event>& save = phases[1];
  const auto wait = std::find_if(save.begin(), save.end(), [](const Event& event) {
    return event.kind == EventKind::wait && event.stream == StreamId::main;
  });
  ASSERT_NE(wait, save.end());
  save.erase(wait);
  EXPECT_GT(shared_pairs(phases, layout).unordered, 0);
}

}  // namespace
}  // namespace headroom
