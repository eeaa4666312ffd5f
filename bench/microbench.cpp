// What is always on has to cost next to nothing: the ledger per event, a parallel region, a random number,
// reserving.
#include <benchmark/benchmark.h>

#include <atomic>
#include <utility>

#include "headroom/cpu.h"
#include "headroom/memory.h"
#include "headroom/ops.h"
#include "traces.h"

namespace headroom {
namespace {

// One allocation and one free, in a stage, checked against the rehearsal.
void ledger_pair(benchmark::State& state) {
  constexpr int kPairs = 1000;
  const auto program = [](Context& context) {
    context.phase("step", [&] {
      for (int i = 0; i < kPairs; ++i) {
        const auto stage = context.stage("layer", i % 36);
        benchmark::DoNotOptimize(
            context.allocate({.name = "hidden", .category = Category::activations, .shape = {16, 64}}));
      }
    });
  };
  Context rehearsal(describe_cpu());
  program(rehearsal);
  CpuBackend backend(1);
  Context context(backend, make_layout(std::move(rehearsal).take_ledger()));
  for (auto _ : state) program(context);
  // Four events each: stage begin, allocate, free, stage end.
  state.SetItemsProcessed(state.iterations() * kPairs * 4);
}
BENCHMARK(ledger_pair)->Name("ledger, per event");

void parallel_region(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  std::atomic<std::int64_t> sum{0};
  for (auto _ : state) {
    pool.run(pool.threads(), [&](std::int64_t i) { sum.fetch_add(i, std::memory_order_relaxed); });
  }
}
BENCHMARK(parallel_region)->Name("parallel region, threads")->Arg(1)->Arg(2)->UseRealTime();

void random_numbers(benchmark::State& state) {
  const Random random(1);
  std::uint64_t index = 0;
  for (auto _ : state) benchmark::DoNotOptimize(random.uniform(index++));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(random_numbers)->Name("random, uniform");

// Reserving makes every page present; the argument is MiB.
void reserve(benchmark::State& state) {
  CpuBackend backend(1);
  const std::int64_t bytes = state.range(0) << 20;
  for (auto _ : state) benchmark::DoNotOptimize(Arena(backend, Space::device, bytes));
  state.SetBytesProcessed(state.iterations() * bytes);
}
BENCHMARK(reserve)
    ->Name("reserve an arena, MiB")
    ->Arg(1)
    ->Arg(64)
    ->Arg(1024)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void rehearse_training_step(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(make_layout(training_step_ledger(state.range(0), 1)));
}
BENCHMARK(rehearse_training_step)
    ->Name("rehearse and pack a step, layers")
    ->Arg(36)
    ->Arg(1000)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace headroom
