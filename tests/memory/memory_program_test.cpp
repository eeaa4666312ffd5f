// The small real program, rehearsed and run: the proof of the whole memory room.
#include "memory_program.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

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
    EXPECT_EQ(run.text(run.phases()[p].name), rehearsed.text(rehearsed.phases()[p].name));
    ASSERT_EQ(run.phases()[p].events.size(), rehearsed.phases()[p].events.size());
    for (std::size_t i = 0; i < run.phases()[p].events.size(); ++i) {
      EXPECT_EQ(run.describe(run.phases()[p].events[i]), rehearsed.describe(rehearsed.phases()[p].events[i]));
      EXPECT_EQ(run.phases()[p].events[i], rehearsed.phases()[p].events[i])
          << "phase " << p << ", event " << i;
    }
  }
  for (const Space space : {Space::device, Space::host}) {
    EXPECT_EQ(context.reserved_bytes(space), layout.reserved(space));
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
  std::int64_t highest = before;
  for (int i = 0; i < 20; ++i) {
    program.step();
    program.save(temporary_file());
    highest = std::max<std::int64_t>(highest, heap_bytes);
  }
  std::filesystem::remove(temporary_file());
  EXPECT_LT(highest - before, 64 << 10);
  // The counter counts: the same number of bytes on purpose is seen.
  std::vector<char> on_purpose(64 << 10);
  EXPECT_GE(heap_bytes - before, 64 << 10);
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

// Happens-before, built from the trace alone as a graph: events of one stream in order, and a record before
// what waits for it. Allocation, free and the calls of the owner are main's. Then every pair of blocks that
// share bytes: all that happens to one comes before all that happens to the other.
class HappensBefore {
 public:
  explicit HappensBefore(const std::vector<Event>& events) : after_(events.size()) {
    std::map<StreamId, std::size_t> last;
    std::map<std::uint32_t, std::size_t> record;
    for (std::size_t i = 0; i < events.size(); ++i) {
      const Event& event = events[i];
      if (const auto previous = last.find(event.stream); previous != last.end())
        after_[previous->second].push_back(i);
      last[event.stream] = i;
      if (event.kind == EventKind::record) record[event.id] = i;
      if (event.kind == EventKind::wait) after_[record.at(event.id)].push_back(i);
    }
  }

  [[nodiscard]] bool ordered(std::size_t first, std::size_t second) const {
    std::set<std::size_t> seen;
    std::vector<std::size_t> open = {first};
    while (!open.empty()) {
      const std::size_t at = open.back();
      open.pop_back();
      if (at == second) return true;
      if (at > second || !seen.insert(at).second) continue;
      open.insert(open.end(), after_[at].begin(), after_[at].end());
    }
    return false;
  }

 private:
  std::vector<std::vector<std::size_t>> after_;
};

struct BlockUse {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  Space space = Space::device;
  std::vector<std::size_t> events;
};

// Pairs of blocks of the phase that share bytes; counts them and finds those that are not ordered.
struct SharedPairs {
  int pairs = 0;
  int unordered = 0;
};
SharedPairs shared_pairs(const std::vector<Event>& events, const std::vector<std::int64_t>& offsets) {
  std::map<std::uint32_t, BlockUse> blocks;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const Event& event = events[i];
    const bool uses =
        event.kind == EventKind::allocate || event.kind == EventKind::free || event.kind == EventKind::touch;
    if (!uses || event.lifetime != Lifetime::phase) continue;
    BlockUse& use = blocks[event.id];
    use.begin = offsets[event.id];
    use.end = use.begin + event.bytes;
    use.space = event.space;
    use.events.push_back(i);
  }
  const HappensBefore order(events);
  SharedPairs found;
  for (const auto& [first_id, first] : blocks) {
    for (const auto& [second_id, second] : blocks) {
      if (first_id >= second_id || first.space != second.space) continue;
      if (first.end <= second.begin || second.end <= first.begin) continue;
      ++found.pairs;
      for (const std::size_t a : first.events) {
        for (const std::size_t b : second.events) found.unordered += !order.ordered(a, b);
      }
    }
  }
  return found;
}

// Staging for one tensor after another, each on the copy stream: blocks that share bytes and are used off
// main.
void staged_copies(Context& context) {
  Tensor weights[3];
  context.phase("load", [&] {
    for (Tensor& weight : weights) {
      weight = context.allocate({.name = "weight", .shape = {1000}, .lifetime = Lifetime::run});
    }
  });
  context.phase("save", [&] {
    for (const Tensor& weight : weights) {
      const Tensor staged = context.allocate({.name = "staged", .shape = {1000}, .space = Space::host});
      context.wait(StreamId::copy, context.record(StreamId::main));
      context.copy(StreamId::copy, staged, weight);
      context.wait(StreamId::main, context.record(StreamId::copy));
    }
  });
}

TEST(StreamsAndOffsets, EveryPairThatSharesBytesIsOrdered) {
  int pairs = 0;
  for (const Layout& layout : {rehearse_program(), rehearse(staged_copies)}) {
    for (std::size_t p = 0; p < layout.rehearsal.phases().size(); ++p) {
      const SharedPairs found = shared_pairs(layout.rehearsal.phases()[p].events, layout.phase_offsets[p]);
      EXPECT_EQ(found.unordered, 0);
      pairs += found.pairs;
    }
  }
  EXPECT_GE(pairs, 4);  // there is something to check
}

TEST(StreamsAndOffsets, TheCheckerSeesAMissingWait) {
  const Layout layout = rehearse(staged_copies);
  std::vector<Event> events = layout.rehearsal.phases()[1].events;
  // Main no longer waits for the first copy: staging is given to the second one while the first may be
  // running.
  const auto wait = std::find_if(events.begin(), events.end(), [](const Event& event) {
    return event.kind == EventKind::wait && event.stream == StreamId::main;
  });
  ASSERT_NE(wait, events.end());
  events.erase(wait);
  EXPECT_GT(shared_pairs(events, layout.phase_offsets[1]).unordered, 0);
}

}  // namespace
}  // namespace headroom
