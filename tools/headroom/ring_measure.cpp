#include "ring_measure.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <thread>

#include "attention_run.h"
#include "headroom/core/bytes.h"
#include "headroom/core/text.h"
#include "headroom/cpu.h"
#include "ring_run.h"
#include "run_options.h"

namespace headroom {
namespace {

// Inputs and results of the whole sequence, in host memory.
class Whole {
 public:
  explicit Whole(const RingBenchCase& c) {
    const AttentionProblem& problem = c.problem;
    views_.forward = lists_of(c);
    const Shape rows{problem.batch, problem.seq_q, problem.heads_q, problem.head_dim};
    const Shape keys{problem.batch, problem.seq_k, problem.heads_kv, problem.head_dim};
    const DType dtype = problem.dtype;
    ThreadPool pool;  // of every core: hundreds of millions of numbers are no work for one
    Stream host;
    host.pool = &pool;
    const auto drawn = [&](const Shape& shape, std::uint64_t seed) {
      const TensorView view = make(dtype, shape);
      fill_normal(view, 0, seed, 1, host);
      return view;
    };
    views_.forward.query = drawn(rows, 1);
    views_.forward.key = drawn(keys, 2);
    views_.forward.value = drawn(keys, 3);
    views_.output_gradient = drawn(rows, 4);
    views_.forward.output = make(dtype, rows);
    views_.forward.lse = make(DType::f32, {problem.batch, problem.heads_q, problem.seq_q});
    views_.query_gradient = make(dtype, rows);
    views_.key_gradient = make(dtype, keys);
    views_.value_gradient = make(dtype, keys);
  }
  [[nodiscard]] const AttentionBackward& views() const { return views_; }

 private:
  TensorView make(DType dtype, const Shape& shape) {
    std::vector<std::byte>& memory =
        memory_.emplace_back(static_cast<std::size_t>(dense_bytes(dtype, shape)));
    return {memory.data(), dtype, shape};
  }

  std::vector<std::vector<std::byte>> memory_;
  AttentionBackward views_;
};

std::int64_t largest(std::int64_t value, Communicator& communicator) {
  std::int64_t most = value;
  for (const std::uint64_t given : communicator.all_values(static_cast<std::uint64_t>(value))) {
    most = std::max(most, static_cast<std::int64_t>(given));
  }
  return most;
}
// A few rows of the first and last head, those that the rank holds.
double sampled_error(const ParallelSchedule& schedule, int rank, const AttentionForward& whole) {
  constexpr int kSamples = 8;
  const AttentionProblem& problem = schedule.problem();
  double worst = 0;
  for (int sample = 0; sample < kSamples; ++sample) {
    const std::int64_t q = sample * (problem.seq_q - 1) / (kSamples - 1);
    for (const Piece& piece : schedule.partition().pieces[static_cast<std::size_t>(rank)]) {
      if (q < piece.begin || q >= piece.end) continue;
      for (const std::int64_t h : {std::int64_t{0}, problem.heads_q - 1}) {
        worst = std::max(worst, output_row_error(problem, whole, problem.batch - 1, h, q));
      }
    }
  }
  return worst;
}

// A GPU that is never idle lowers its clocks to stay within its power; one that has rested has all of them.
void rest(const BenchOptions& options) {
  std::this_thread::sleep_for(Seconds(options.rest_seconds));
}

// The share of a step in which main has work. On a GPU the host does not wait for messages; main does.
double busy_share(Context& context, RingRun& run) {
  context.measure_work();
  const double before = context.work_seconds();
  const double wall = seconds_of([&] {
    run.forward();
    run.backward();
    context.synchronize();
  });
  return (context.work_seconds() - before) / wall;
}

// One rank's part. All ranks come to the same row.
RingRow measure_rank(const RingBenchCase& c, const ParallelSchedule& schedule, const AttentionBackward& whole,
                     const BenchOptions& options, Communicator& communicator, Backend& backend) {
  const Ranks ranks = communicator.ranks();
  const Layout layout = rehearse_ring(schedule, whole, backend.description(), ranks);
  Context context(backend, layout, &communicator);
  RingRun run(context, schedule, whole);
  for (int i = 0; i < options.warmup; ++i) {
    run.forward();
    run.backward();
  }
  RingRow row;
  row.c = c;
  row.rest_seconds = options.rest_seconds;
  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<double> overlap;
  double spent = 0;
  // Every rank makes as many steps: they agree on whether there is time for another.
  for (int i = 0; i < options.steps && spent <= options.max_seconds; ++i) {
    const auto timed = [&](const auto& pass) {
      rest(options);
      communicator.barrier();
      const double own = seconds_of([&] {
        pass();
        context.synchronize();
      });
      communicator.barrier();
      return largest(own, communicator);
    };
    double waiting = 0;
    std::int64_t bytes = 0;
    const auto counted = [&](const auto& pass) {
      const std::int64_t sent_before = communicator.traffic().sent_bytes;
      const Seconds before = communicator.waited();
      pass();
      waiting += (communicator.waited() - before).count();
      bytes += communicator.traffic().sent_bytes - sent_before;
    };
    forward.push_back(timed([&] { counted([&] { run.forward(); }); }));
    backward.push_back(timed([&] { counted([&] { run.backward(); }); }));
    const double wall = forward.back() + backward.back();
    overlap.push_back(1 - largest(waiting, communicator) / wall);
    spent += wall;
    const std::int64_t counted_bytes =
        schedule.sent_bytes(ranks.rank, Pass::forward) + schedule.sent_bytes(ranks.rank, Pass::backward);
    check(bytes == counted_bytes, "rank {} sent {} bytes, and the schedule counts {}", ranks.rank, bytes,
          counted_bytes);
    row.sent_bytes = largest(bytes, communicator);
  }
  if (!backend.description().host_accessible()) {
    communicator.barrier();
    overlap = {-largest(-busy_share(context, run), communicator)};
  }
  run.store();
  communicator.barrier();
  row.forward_ms = median(forward) * 1e3;
  row.backward_ms = median(backward) * 1e3;
  row.overlap = median(overlap);
  row.peak_bytes = largest(layout.reserved(Space::device), communicator);
  row.error = largest(sampled_error(schedule, ranks.rank, whole.forward), communicator);
  return row;
}

// Ranks that are threads, over a link.
RingRow measure_threads(const RingBenchCase& c, const ParallelSchedule& schedule,
                        const AttentionBackward& whole, const BenchOptions& options,
                        const std::vector<Device>& devices, int threads, const LinkModel& link) {
  RingRow row;
  on_thread_ranks(c.ranks, link, [&](Communicator& communicator) {
    const int rank = communicator.ranks().rank;
    const RingRow measured = measure_rank(c, schedule, whole, options, communicator,
                                          *open_backend(device_of_rank(devices, rank), threads));
    if (rank == 0) row = measured;
  });
  return row;
}

std::int64_t most_sent_bytes(const ParallelSchedule& schedule, int ranks, Pass pass) {
  std::int64_t most = 0;
  for (int rank = 0; rank < ranks; ++rank) most = std::max(most, schedule.sent_bytes(rank, pass));
  return most;
}

// What backward cannot hide: the gradients of the last transfer leave when everything is computed. Nothing
// travels home where heads are divided or everything is gathered.
double hop_ms(const RingSchedule& ring, const LinkModel& link) {
  const AttentionProblem& problem = ring.problem();
  const auto bytes =
      static_cast<double>(2 * ring.most_rows() * problem.head_dim * size_bytes(problem.dtype_of_sums()));
  return bytes == 0 ? 0 : 1e3 * (bytes / link.bytes_per_second + link.latency.count());
}

// The same over a link as fast as memory and over the one that was asked for. A link whose messages take a
// share of the time of a pass has another rate in each pass, and each pass is measured over its own.
template <class Measure>
RingRow measure_over_link(const ParallelSchedule& schedule, int ranks, const RingLink& asked,
                          const Measure& measured_over) {
  const RingRow alone = measured_over(LinkModel{});
  const auto link_of = [&](Pass pass, double alone_ms) {
    LinkModel link{.latency = Seconds(asked.latency_seconds)};
    if (asked.bytes_per_second) link.bytes_per_second = static_cast<double>(*asked.bytes_per_second);
    const auto bytes = static_cast<double>(most_sent_bytes(schedule, ranks, pass));
    if (asked.share > 0 && bytes > 0) link.bytes_per_second = bytes / (asked.share * alone_ms / 1e3);
    return link;
  };
  LinkedPasses linked{.alone_forward_ms = alone.forward_ms,
                      .alone_backward_ms = alone.backward_ms,
                      .forward_link = link_of(Pass::forward, alone.forward_ms),
                      .backward_link = link_of(Pass::backward, alone.backward_ms)};
  linked.backward_hop_ms = hop_ms(schedule.ring(), linked.backward_link);
  RingRow row = measured_over(linked.forward_link);
  if (linked.backward_link != linked.forward_link) {
    const RingRow over_backward = measured_over(linked.backward_link);
    row.backward_ms = over_backward.backward_ms;
    row.overlap = std::min(row.overlap, over_backward.overlap);
  }
  row.linked = linked;
  return row;
}

// What one of so many ranks has of the device that one rank alone has to itself. Ranks on a CPU have their
// threads, or their part of the cores where there are more threads than cores.
double rank_share(int ranks, const std::vector<Device>& devices, int threads, int threads_of_rank) {
  if (devices.front().kind == DeviceKind::cpu) {
    const double cores = usable_cores();
    return std::min(static_cast<double>(threads_of_rank), cores / ranks) / std::min<double>(threads, cores);
  }
  return 1.0 / ranks_on_device(devices, 0, ranks);
}

// As many as one rank alone has.
int single_threads(const BenchOptions& options) {
  return options.threads == 0 ? usable_cores() : options.threads;
}

AttentionTime predict(const RingRow& row) {
  const RingBenchCase& c = row.c;
  const AttentionForward lists = lists_of(c);
  const Partition partition = make_partition(c.partition, c.ranks, c.problem, lists);
  const ParallelSchedule schedule(c.way, c.problem, lists, partition, c.group);
  const auto played = [&](const LinkModel& link) {
    return play_attention(c.problem, lists, partition, schedule.group(), rank_rates(row, link));
  };
  return {.forward = played(row.linked->forward_link).forward,
          .backward = played(row.linked->backward_link).backward};
}

}  // namespace

void add_link_model_options(Command app, RingLink& link) {
  app.add_budget("--link-rate", link.bytes_per_second,
                 "Bytes per second that a rank's link moves, such as 1GiB (default: as fast as memory)");
  app.add_number(
      "--link-share", link.share, {.most = 100},
      "Give the link the rate at which messages take this part of the time without it, such as 0.8");
  app.add_seconds("--latency", link.latency_seconds, {.most = kMostLatencySeconds},
                  "How late a message arrives, such as 50us or 2ms");
}

void check_link(const RingLink& link) {
  check(!link.bytes_per_second || link.share == 0,
        "--link-rate and --link-share both give the link's rate; use one of them");
}

double largest(double value, Communicator& communicator) {
  double most = value;
  for (const std::uint64_t bits : communicator.all_values(std::bit_cast<std::uint64_t>(value))) {
    most = std::max(most, std::bit_cast<double>(bits));
  }
  return most;
}

AttentionForward lists_of(const RingBenchCase& c) {
  AttentionForward lists;
  if (c.document_starts.empty()) return lists;
  lists.document_starts = TensorView(const_cast<std::int32_t*>(c.document_starts.data()), DType::i32,
                                     {1, std::ssize(c.document_starts)});
  return lists;
}

RingRow measure_ring(const RingBenchCase& c, const BenchOptions& options, const RingLink& link,
                     LaunchedRanks& launched, const std::vector<Device>& devices, const BenchDevice& device) {
  const Whole whole(c);
  const AttentionBackward& views = whole.views();
  const Partition partition = make_partition(c.partition, c.ranks, c.problem, views.forward);
  RingRow row;
  row.c = c;
  if (const Support support = supports_way(c.way, c.problem, partition, c.group); !support) {
    row.reason = support.reason();
    return row;
  }
  const ParallelSchedule schedule(c.way, c.problem, views.forward, partition, c.group);
  Communicator* communicator = launched.communicator();
  const int threads = single_threads(options);
  const int each = communicator != nullptr ? threads : std::max(1, threads / c.ranks);
  std::int64_t bytes = 0;  // of all ranks of this process on the first device
  const Device where = device.listed.device;
  DeviceDescription description = device.listed.description;
  if (where.kind == DeviceKind::cpu) description.cores = each;
  for (int rank = 0; rank < c.ranks; ++rank) {
    const std::int64_t one =
        rehearse_ring(schedule, views, description, {rank, c.ranks}).reserved(Space::device);
    if (communicator != nullptr) {
      bytes = std::max(bytes, one);
    } else if (device_of_rank(devices, rank) == where) {
      bytes += one;
    }
  }
  if (bytes > device.budget) {
    row.reason = fmt::format("needs {}, the budget is {}", format_bytes(bytes), format_bytes(device.budget));
    return row;
  }
  if (communicator != nullptr) {
    return measure_rank(c, schedule, views, options, *communicator, *open_backend(where, each));
  }
  const auto measured_over = [&](const LinkModel& model) {
    return measure_threads(c, schedule, views, options, devices, each, model);
  };
  row = link.given() ? measure_over_link(schedule, c.ranks, link, measured_over) : measured_over(LinkModel{});
  row.rank_share = rank_share(c.ranks, devices, threads, each);
  return row;
}

void measure_single(RingRow& row, const BenchOptions& options, const BenchDevice& device) {
  if (!row.reason.empty()) return;
  const RingBenchCase& c = row.c;
  const Whole whole(c);
  const AttentionBackward& views = whole.views();
  const ParallelSchedule schedule(AttentionWay::ring, c.problem, views.forward,
                                  make_partition(PartitionKind::contiguous, 1, c.problem, views.forward));
  const std::unique_ptr<Backend> backend = open_backend(device.listed.device, single_threads(options));
  const Layout layout = rehearse_ring(schedule, views, backend->description(), {});
  Context context(*backend, layout);
  RingRun run(context, schedule, views);
  // Both passes in turn, as the ranks make them: a GPU under load changes its clocks.
  std::vector<double> forward;
  std::vector<double> backward;
  const auto timed = [&](const auto& pass) {
    rest(options);
    return seconds_of([&] {
      pass();
      context.synchronize();
    });
  };
  for (int i = 0; i < options.warmup; ++i) {
    run.forward();
    run.backward();
  }
  context.synchronize();
  double spent = 0;
  for (int i = 0; i < options.steps && spent <= options.max_seconds; ++i) {
    forward.push_back(timed([&] { run.forward(); }));
    backward.push_back(timed([&] { run.backward(); }));
    spent += forward.back() + backward.back();
  }
  row.single_forward_ms = median(forward) * 1e3;
  row.single_backward_ms = median(backward) * 1e3;
  row.single_bytes = layout.reserved(Space::device);
  if (row.linked && c.way != AttentionWay::gather) row.linked->predicted = predict(row);
}

RankRates rank_rates(const RingRow& row, const LinkModel& link) {
  const Piece all{0, row.c.problem.seq_k};
  const double pairs = static_cast<double>(count_pairs(row.c.problem, lists_of(row.c), all, all));
  const double flops_per_ms = static_cast<double>(row.c.problem.head_dim) * pairs * row.rank_share * 1e3;
  return {.forward = {.flops_per_second = 4 * flops_per_ms / row.single_forward_ms},
          .backward = {.flops_per_second = 10 * flops_per_ms / row.single_backward_ms},
          .link = link};
}

}  // namespace headroom
