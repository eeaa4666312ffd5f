// What is always on has to cost next to nothing: the ledger per event, a parallel region, a random number,
// reserving. And the small operations of a step, in bytes read and written per second.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include "headroom/cpu.h"
#include "headroom/memory.h"
#include "headroom/ops.h"
#include "ops/matmul.h"
#include "traces.h"

namespace headroom {
namespace {

// One allocation and one free, in a stage, checked against the rehearsal.
void ledger_pair(benchmark::State& state) {
  constexpr int kPairs = 1000;
  const auto program = [](Context& context) {
    context.phase(Phase::step, [&] {
      for (int i = 0; i < kPairs; ++i) {
        const auto stage = context.stage(StageKind::layer, i % 36);
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

// body(context) once in a rehearsed phase, then timed on so many threads; it says how many bytes it moves.
template <class Body>
void time_operation(benchmark::State& state, const Body& body) {
  CpuBackend backend(static_cast<int>(state.range(0)));
  const auto program = [&](Context& context) {
    context.phase(Phase::step, [&] { state.SetBytesProcessed(state.iterations() * body(context)); });
  };
  Context rehearsal(backend.description());
  program(rehearsal);
  Context context(backend, make_layout(std::move(rehearsal).take_ledger()));
  for (auto _ : state) program(context);
  program(context);
}

constexpr std::int64_t kTokens = 16'384;
constexpr std::int64_t kWidth = 1024;

Tensor rows(Context& context, DType dtype = DType::bf16) {
  return context.allocate({.name = "rows", .dtype = dtype, .shape = {kTokens, kWidth}});
}

void rms_norm_operation(benchmark::State& state) {
  time_operation(state, [](Context& context) {
    const Tensor x = rows(context);
    const Tensor weight = context.allocate({.name = "weight", .dtype = DType::bf16, .shape = {kWidth}});
    const Tensor rstd = context.allocate({.name = "rstd", .shape = {kTokens}});
    rms_norm_forward(context, {.x = x, .weight = weight, .y = x, .rstd = rstd}, 1e-6F);
    return 2 * x.view().bytes();
  });
}
BENCHMARK(rms_norm_operation)->Name("rms_norm forward bf16, threads")->Arg(1)->Arg(2)->UseRealTime();

void rms_norm_gradient(benchmark::State& state) {
  time_operation(state, [](Context& context) {
    const Tensor x = rows(context);
    const Tensor gradient = rows(context);
    const Tensor weight = context.allocate({.name = "weight", .dtype = DType::bf16, .shape = {kWidth}});
    const Tensor weight_gradient = context.allocate({.name = "weight gradient", .shape = {kWidth}});
    const Tensor rstd = context.allocate({.name = "rstd", .shape = {kTokens}});
    rms_norm_backward(context,
                      {.x = x,
                       .weight = weight,
                       .rstd = rstd,
                       .y_gradient = gradient,
                       .x_gradient = gradient,
                       .weight_gradient = weight_gradient},
                      Store::overwrite);
    return 3 * x.view().bytes();
  });
}
BENCHMARK(rms_norm_gradient)->Name("rms_norm backward bf16, threads")->Arg(1)->Arg(2)->UseRealTime();

void swiglu_operation(benchmark::State& state) {
  time_operation(state, [](Context& context) {
    const Tensor gate = rows(context);
    const Tensor up = rows(context);
    swiglu_forward(context, gate, up, gate);
    return 3 * gate.view().bytes();
  });
}
BENCHMARK(swiglu_operation)->Name("swiglu forward bf16, threads")->Arg(1)->Arg(2)->UseRealTime();

// 16 heads of 64: two bytes in and out per element, and one sine and cosine per token and pair.
void rope_operation(benchmark::State& state) {
  const RopeFrequencies frequencies = rope_frequencies({}, 64);
  time_operation(state, [&](Context& context) {
    const Tensor x = rows(context);
    const Tensor positions = context.allocate({.name = "positions", .dtype = DType::i32, .shape = {kTokens}});
    rope(context, x.view().reshape({kTokens, 16, 64}), positions, frequencies, Pass::forward);
    return 2 * x.view().bytes();
  });
}
BENCHMARK(rope_operation)->Name("rope bf16, threads")->Arg(1)->Arg(2)->UseRealTime();

// One head, so that the angles are most of it: per item one sine and cosine, and its share of the turning.
void rope_angles(benchmark::State& state) {
  const RopeFrequencies frequencies = rope_frequencies({}, 256);
  time_operation(state, [&](Context& context) {
    const Tensor x = rows(context);
    const Tensor positions =
        context.allocate({.name = "positions", .dtype = DType::i32, .shape = {kTokens * 4}});
    rope(context, x.view().reshape({kTokens * 4, 1, 256}), positions, frequencies, Pass::forward);
    return 2 * x.view().bytes();
  });
  state.SetItemsProcessed(state.iterations() * kTokens * kWidth / 2);
}
BENCHMARK(rope_angles)->Name("rope bf16, one head of 256, threads")->Arg(1)->UseRealTime();

// n^3 in f32 as x W^T (0), dy W (1) and dy^T x (2) lie in memory. of_peak: the median over the multiply-add
// peak measured beside each.
void product(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  CpuBackend backend(0);
  const Stream stream = backend.stream(StreamId::main);
  const std::int64_t workspace_bytes = product_workspace_bytes(n, n, *stream.device);
  Arena arena(backend, Space::device, 3 * n * n * 4 + workspace_bytes);
  auto* memory = static_cast<float*>(arena.open(0, arena.bytes()));
  const auto matrix = [&](std::int64_t i) { return TensorView(memory + i * n * n, DType::f32, {n, n}); };
  for (std::int64_t i = 0; i < 2 * n * n; ++i) {
    memory[i] = static_cast<float>(Random(1).uniform(static_cast<std::uint64_t>(i))) - 0.5F;
  }
  const TensorView a = state.range(1) == 2 ? matrix(0).transpose(0, 1) : matrix(0);
  const TensorView b = state.range(1) == 0 ? matrix(1).transpose(0, 1) : matrix(1);
  const TensorView workspace(memory + 3 * n * n, DType::u8, {workspace_bytes});
  std::vector<double> fractions;
  for (auto _ : state) {
    const double peak = measured_peak_flops(stream);
    const auto start = std::chrono::steady_clock::now();
    product_row(*stream.device).run({a, b, matrix(2)}, workspace, stream);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    state.SetIterationTime(seconds.count());
    fractions.push_back(2.0 * static_cast<double>(n * n * n) / seconds.count() / peak);
  }
  std::sort(fractions.begin(), fractions.end());
  state.counters["of_peak"] = fractions[fractions.size() / 2];
}
BENCHMARK(product)
    ->Name("product f32, size and layout")
    ->ArgsProduct({{512, 2048}, {0, 1, 2}})
    ->UseManualTime();

void adamw_operation(benchmark::State& state) {
  time_operation(state, [](Context& context) {
    const Tensor master = rows(context, DType::f32);
    const Tensor gradient = rows(context, DType::f32);
    const Tensor first = rows(context, DType::f32);
    const Tensor second = rows(context, DType::f32);
    const Tensor weight = rows(context);
    const Tensor factor = context.allocate({.name = "factor", .shape = {1}});
    fill(context, factor, 1);
    adamw(context,
          {.master = master,
           .gradient = gradient,
           .first = first,
           .second = second,
           .weight = weight,
           .factor = factor},
          {});
    return 7 * master.view().bytes() + weight.view().bytes();
  });
}
BENCHMARK(adamw_operation)->Name("adamw, bf16 weights, threads")->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace headroom
