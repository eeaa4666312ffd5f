// headroom bench ring: attention over ranks beside attention on one: time, waiting, bytes sent and bytes
// held. The ranks are threads of this process, on the CPU or as streams of GPUs; under mpirun, and on GPUs
// under torchrun, they are its processes.
#include <fmt/ostream.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>

#include "attention_run.h"
#include "bench.h"
#include "cli.h"
#include "headroom/core/bytes.h"
#include "headroom/core/elements.h"
#include "headroom/core/parse.h"
#include "headroom/core/text.h"
#include "headroom/cpu.h"
#include "headroom/device.h"
#include "headroom/parallel.h"
#include "launched_ranks.h"
#include "ring_page.h"
#include "ring_run.h"
#include "run_options.h"

namespace headroom {
namespace {

struct Options {
  BenchOptions bench;
  std::vector<std::string> devices = {"cpu"};
  std::vector<std::int64_t> ranks = {2, 4};
  std::vector<std::int64_t> seq = {4096};
  std::int64_t heads = 8;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 64;
  std::string dtype = "f32";
  std::vector<std::string> mask = {"causal"};
  std::vector<std::string> partition = {"zigzag"};
  std::vector<std::string> implementation = {"ring"};
  std::optional<std::int64_t> link_rate;
  double latency = 0;
  double link_share = 0;  // of the time of computing that messages take; 0: the link's rate is given

  [[nodiscard]] bool has_link() const { return link_rate || latency > 0 || link_share > 0; }
};

struct Case {
  AttentionProblem problem;
  std::string mask;
  std::vector<std::int32_t> document_starts;
  int ranks = 1;
  PartitionKind partition = PartitionKind::zigzag;
  AttentionWay way = AttentionWay::ring;
  int group = 0;  // ranks that divide heads, in the product
};

// The lists of the whole sequence, in host memory.
AttentionForward lists_of(const Case& c) {
  AttentionForward lists;
  if (c.document_starts.empty()) return lists;
  lists.document_starts = TensorView(const_cast<std::int32_t*>(c.document_starts.data()), DType::i32,
                                     {1, std::ssize(c.document_starts)});
  return lists;
}

void set_way(Case& c, std::string_view text) {
  constexpr std::string_view kProduct = "product:";
  if (text.starts_with(kProduct)) {
    c.way = AttentionWay::product;
    c.group = static_cast<int>(parse_whole("implementation 'product:' ranks of a group",
                                           text.substr(kProduct.size()), 2, kMostRanks));
    return;
  }
  for (const AttentionWay way : {AttentionWay::ring, AttentionWay::heads, AttentionWay::gather}) {
    c.way = way;
    if (name(way, 0) == text) return;
  }
  fail(ErrorKind::input, "implementation {} is unknown; use ring, heads, product:N or allgather",
       quote(text));
}

// Seconds and bytes of the rank where they are largest.
struct Row {
  Case c;
  std::string reason;  // where it did not run
  double forward_ms = 0;
  double backward_ms = 0;
  double single_forward_ms = 0;
  double single_backward_ms = 0;
  std::int64_t sent_bytes = 0;
  std::int64_t peak_bytes = 0;
  std::int64_t single_bytes = 0;
  double overlap = 0;
  double error = 0;
  // Over a link: what the passes take without it, and the rates of their links.
  double alone_forward_ms = 0;
  double alone_backward_ms = 0;
  double forward_link = std::numeric_limits<double>::infinity();
  double backward_link = std::numeric_limits<double>::infinity();
};

// Inputs and results of the whole sequence, in host memory.
class Whole {
 public:
  explicit Whole(const Case& c) {
    const AttentionProblem& problem = c.problem;
    views_.forward = lists_of(c);
    const Shape rows{problem.batch, problem.seq_q, problem.heads_q, problem.head_dim};
    const Shape keys{problem.batch, problem.seq_k, problem.heads_kv, problem.head_dim};
    const DType dtype = problem.dtype;
    views_.forward.query = make(dtype, rows, 1);
    views_.forward.key = make(dtype, keys, 2);
    views_.forward.value = make(dtype, keys, 3);
    views_.output_gradient = make(dtype, rows, 4);
    views_.forward.output = make(dtype, rows);
    views_.forward.lse = make(DType::f32, {problem.batch, problem.heads_q, problem.seq_q});
    views_.query_gradient = make(dtype, rows);
    views_.key_gradient = make(dtype, keys);
    views_.value_gradient = make(dtype, keys);
  }
  [[nodiscard]] const AttentionBackward& views() const { return views_; }

 private:
  TensorView make(DType dtype, const Shape& shape, std::uint64_t seed = 0) {
    std::vector<std::byte>& memory =
        memory_.emplace_back(static_cast<std::size_t>(dense_bytes(dtype, shape)));
    const TensorView view(memory.data(), dtype, shape);
    const Random random(seed);
    for (std::int64_t i = 0; seed != 0 && i < shape.elements(); ++i) {
      write_element(view, i, random.normal(static_cast<std::uint64_t>(i)));
    }
    return view;
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
double largest(double value, Communicator& communicator) {
  double most = value;
  for (const std::uint64_t bits : communicator.all_values(std::bit_cast<std::uint64_t>(value))) {
    most = std::max(most, std::bit_cast<double>(bits));
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
Row measure_rank(const Case& c, const ParallelSchedule& schedule, const AttentionBackward& whole,
                 const Options& options, Communicator& communicator, Backend& backend) {
  const Ranks ranks = communicator.ranks();
  const Layout layout = rehearse_ring(schedule, whole, backend.description(), ranks);
  Context context(backend, layout, &communicator);
  RingRun run(context, schedule, whole);
  for (int i = 0; i < options.bench.warmup; ++i) {
    run.forward();
    run.backward();
  }
  Row row;
  row.c = c;
  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<double> overlap;
  double spent = 0;
  // Every rank makes as many steps: they agree on whether there is time for another.
  for (int i = 0; i < options.bench.steps && spent <= options.bench.max_seconds; ++i) {
    const auto timed = [&](const auto& pass) {
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

// The same attention on one rank with the whole device. after_step() is called after each step.
template <class AfterStep>
void measure_single(const Case& c, const AttentionBackward& whole, const Options& options, Backend& backend,
                    Row& row, const AfterStep& after_step) {
  const ParallelSchedule schedule(AttentionWay::ring, c.problem, whole.forward,
                                  make_partition(PartitionKind::contiguous, 1, c.problem, whole.forward));
  const Layout layout = rehearse_ring(schedule, whole, backend.description(), {});
  Context context(backend, layout);
  RingRun run(context, schedule, whole);
  const auto median_ms = [&](const auto& pass) {
    const auto whole_pass = [&] {
      pass();
      context.synchronize();
    };
    for (int i = 0; i < options.bench.warmup; ++i) {
      whole_pass();
      after_step();
    }
    std::vector<double> seconds;
    repeat(options.bench, [&] {
      seconds.push_back(seconds_of(whole_pass));
      after_step();
    });
    return median(seconds) * 1e3;
  };
  row.single_forward_ms = median_ms([&] { run.forward(); });
  row.single_backward_ms = median_ms([&] { run.backward(); });
  row.single_bytes = layout.reserved(Space::device);
}

// `launched` is the number of processes, where ranks are those.
std::vector<Case> make_cases(const Options& options, std::optional<int> launched) {
  std::vector<Case> cases;
  for (const std::string& mask : options.mask) {
    for (const std::int64_t seq : options.seq) {
      for (const std::int64_t ranks : launched ? std::vector<std::int64_t>{*launched} : options.ranks) {
        for (const std::string& partition : options.partition) {
          for (const std::string& way : options.implementation) {
            Case c{.problem = {.seq_q = seq,
                               .seq_k = seq,
                               .heads_q = options.heads,
                               .heads_kv = options.kv_heads == 0 ? options.heads : options.kv_heads,
                               .head_dim = options.head_dim,
                               .dtype = parse_dtype(options.dtype)},
                   .mask = mask,
                   .document_starts = {},
                   .ranks = static_cast<int>(ranks),
                   .partition = parse_partition(partition)};
            c.document_starts = apply_mask(c.problem, mask);
            set_way(c, way);
            if (c.way == AttentionWay::gather) c.partition = PartitionKind::contiguous;
            validate(c.problem);
            cases.push_back(std::move(c));
          }
        }
      }
    }
  }
  return cases;
}

// Ranks that are threads, over a link.
Row measure_threads(const Case& c, const ParallelSchedule& schedule, const AttentionBackward& whole,
                    const Options& options, const std::vector<Device>& devices, int threads,
                    const LinkModel& link) {
  Row row;
  on_thread_ranks(c.ranks, link, [&](Communicator& communicator) {
    const int rank = communicator.ranks().rank;
    const Row measured = measure_rank(c, schedule, whole, options, communicator,
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

// The same over a link as fast as memory and over the one that was asked for. A link whose messages take a
// share of the time of computing has another rate in each pass, and each pass is measured over its own.
template <class Measure>
Row measure_over_link(const Case& c, const ParallelSchedule& schedule, const Options& options,
                      const Measure& measured_over) {
  if (!options.has_link()) return measured_over(LinkModel{});
  const Row alone = measured_over(LinkModel{});
  const auto link_of = [&](Pass pass, double alone_ms) {
    LinkModel link{.latency = Seconds(options.latency)};
    if (options.link_rate) link.bytes_per_second = static_cast<double>(*options.link_rate);
    if (options.link_share > 0) {
      link.bytes_per_second = static_cast<double>(most_sent_bytes(schedule, c.ranks, pass)) /
                              (options.link_share * alone_ms / 1e3);
    }
    return link;
  };
  const LinkModel forward = link_of(Pass::forward, alone.forward_ms);
  const LinkModel backward = link_of(Pass::backward, alone.backward_ms);
  Row row = measured_over(forward);
  if (options.link_share > 0) {
    const Row over_backward = measured_over(backward);
    row.backward_ms = over_backward.backward_ms;
    row.overlap = std::min(row.overlap, over_backward.overlap);
  }
  row.alone_forward_ms = alone.forward_ms;
  row.alone_backward_ms = alone.backward_ms;
  row.forward_link = forward.bytes_per_second;
  row.backward_link = backward.bytes_per_second;
  return row;
}

Row measure(const Case& c, const Options& options, LaunchedRanks& launched,
            const std::vector<Device>& devices, const BenchDevice& device) {
  const Whole whole(c);
  const AttentionBackward& views = whole.views();
  const Partition partition = make_partition(c.partition, c.ranks, c.problem, views.forward);
  Row row;
  row.c = c;
  if (const Support support = supports_way(c.way, c.problem, partition, c.group); !support) {
    row.reason = support.reason();
    return row;
  }
  const ParallelSchedule schedule(c.way, c.problem, views.forward, partition, c.group);
  Communicator* communicator = launched.communicator();
  const int threads = options.bench.threads == 0 ? usable_cores() : options.bench.threads;
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
  if (communicator == nullptr) {
    row = measure_over_link(c, schedule, options, [&](const LinkModel& link) {
      return measure_threads(c, schedule, views, options, devices, each, link);
    });
    measure_single(c, views, options, *open_backend(where, threads), row, [] {});
    return row;
  }
  row = measure_rank(c, schedule, views, options, *communicator, *open_backend(where, each));
  // The other ranks wait while the first one measures, step by step: all steps together may take longer than
  // the timeout. The sum is 1 where another step follows.
  if (communicator->ranks().rank == 0) {
    measure_single(c, views, options, *open_backend(where, threads), row,
                   [&] { static_cast<void>(communicator->all_reduce(1.0)); });
    static_cast<void>(communicator->all_reduce(0.0));
  } else {
    while (communicator->all_reduce(0.0) > 0) {
    }
  }
  return row;
}

nlohmann::ordered_json to_json(const Row& row, std::string_view transport) {
  const AttentionProblem& p = row.c.problem;
  nlohmann::ordered_json json = {{"transport", transport}, {"impl", name(row.c.way, row.c.group)},
                                 {"ranks", row.c.ranks},   {"partition", name(row.c.partition)},
                                 {"mask", row.c.mask},     {"seq", p.seq_k},
                                 {"heads_q", p.heads_q},   {"heads_kv", p.heads_kv},
                                 {"head_dim", p.head_dim}, {"dtype", name(p.dtype)}};
  if (!row.reason.empty()) {
    json["reason"] = row.reason;
    return json;
  }
  json.update({{"forward_ms", row.forward_ms},
               {"backward_ms", row.backward_ms},
               {"single_forward_ms", row.single_forward_ms},
               {"single_backward_ms", row.single_backward_ms},
               {"sent_bytes_per_rank", row.sent_bytes},
               {"peak_bytes_per_rank", row.peak_bytes},
               {"single_bytes", row.single_bytes},
               {"overlap", row.overlap},
               {"error", row.error}});
  if (row.alone_forward_ms > 0) {
    json.update({{"alone_forward_ms", row.alone_forward_ms},
                 {"alone_backward_ms", row.alone_backward_ms},
                 {"forward_of_alone", row.forward_ms / row.alone_forward_ms},
                 {"backward_of_alone", row.backward_ms / row.alone_backward_ms},
                 {"forward_link_bytes_per_second", row.forward_link},
                 {"backward_link_bytes_per_second", row.backward_link}});
  }
  return json;
}

Table to_table(const std::vector<Row>& rows) {
  Table table({"way", "ranks", "partition", "mask", "seq", "forward", "backward", "single forward",
               "single backward", "sent per rank", "peak per rank", "single", "overlap", "error"});
  for (const Row& row : rows) {
    const std::vector<Cell> first = {name(row.c.way, row.c.group), std::to_string(row.c.ranks),
                                     std::string(name(row.c.partition)), row.c.mask,
                                     format_count(row.c.problem.seq_k)};
    std::vector<Cell> cells = first;
    if (!row.reason.empty()) {
      cells.insert(cells.end(), {row.reason, "", "", "", "", "", "", "", ""});
    } else {
      cells.insert(
          cells.end(),
          {fmt::format("{:.2f} ms", row.forward_ms), fmt::format("{:.2f} ms", row.backward_ms),
           fmt::format("{:.2f} ms", row.single_forward_ms), fmt::format("{:.2f} ms", row.single_backward_ms),
           bytes_cell(row.sent_bytes), bytes_cell(row.peak_bytes), bytes_cell(row.single_bytes),
           fmt::format("{:.3f}", row.overlap), fmt::format("{:.1e}", row.error)});
    }
    table.add(cells);
  }
  return table;
}

void write_page(const Options& options, const std::vector<Row>& rows, const Table& table,
                std::string_view transport) {
  if (!options.bench.html) return;
  Page page{.title = "Attention over ranks", .subtitle = fmt::format("ranks over {}", transport)};
  page.sections.emplace_back(TableSection{.title = "Measured", .table = table});
  for (const Row& row : rows) {
    if (row.c.way != AttentionWay::ring || !row.reason.empty()) continue;
    const AttentionForward lists = lists_of(row.c);
    const RingSchedule schedule(row.c.problem, lists,
                                make_partition(row.c.partition, row.c.ranks, row.c.problem, lists));
    page.sections.emplace_back(
        schedule_chart(schedule, fmt::format("{} over {} ranks, {}, {} tokens", row.c.mask, row.c.ranks,
                                             name(row.c.partition), format_count(row.c.problem.seq_k))));
    page.sections.emplace_back(schedule_table(schedule));
  }
  write_html(*options.bench.html, page);
}

void print_links(const std::vector<Row>& rows, std::ostream& out) {
  for (const Row& row : rows) {
    if (row.alone_forward_ms == 0) continue;
    const auto rate = [](double link) {
      return std::isfinite(link) ? format_bytes(std::llround(link)) + "/s" : std::string("as fast as memory");
    };
    fmt::print(
        out,
        "{} over {} ranks, {}, {} tokens: forward {:.3f} x and backward {:.3f} x what they take without "
        "the link ({:.2f} ms, {:.2f} ms); link {} and {}\n",
        name(row.c.way, row.c.group), row.c.ranks, row.c.mask, format_count(row.c.problem.seq_k),
        row.forward_ms / row.alone_forward_ms, row.backward_ms / row.alone_backward_ms, row.alone_forward_ms,
        row.alone_backward_ms, rate(row.forward_link), rate(row.backward_link));
  }
}

// What the cost model would pick with the rate that one rank reached here and the link's.
void print_choices(const std::vector<Row>& rows, std::ostream& out) {
  for (const Row& row : rows) {
    if (row.c.way != AttentionWay::ring || !row.reason.empty()) continue;
    const AttentionForward lists = lists_of(row.c);
    const Piece all{0, row.c.problem.seq_k};
    const double flops = 4.0 * static_cast<double>(row.c.problem.head_dim) *
                         static_cast<double>(count_pairs(row.c.problem, lists, all, all));
    const double flops_per_second = flops / (row.single_forward_ms / 1e3);
    const WayChoice choice = choose_way(
        row.c.problem, lists, make_partition(row.c.partition, row.c.ranks, row.c.problem, lists),
        {.flops_per_second = flops_per_second / row.c.ranks, .link_bytes_per_second = row.forward_link});
    fmt::print(out, "{} over {} ranks: {} is best; {}\n", row.c.mask, row.c.ranks,
               name(choice.way, choice.group), choice.reason);
  }
}

void run(Options options, std::ostream& given) {
  const std::vector<Device> devices = devices_of_ranks(options.devices);
  check(!options.link_rate || options.link_share == 0,
        "--link-rate and --link-share both give the link's rate; use one of them");
  LaunchedRanks launched(devices);
  check(launched.communicator() == nullptr || !options.has_link(),
        "--link-rate, --link-share and --latency are for ranks that are threads, and this is one of several "
        "processes");
  options.bench.device = to_string(launched.device());
  const BenchDevice device = bench_device(options.bench);
  std::ostream nowhere(nullptr);
  const bool prints = launched.ranks().rank == 0;
  std::ostream& out = prints ? given : nowhere;
  const std::string_view transport = launched.transport();
  std::optional<int> count;
  if (launched.communicator() != nullptr) count = launched.ranks().count;
  std::vector<Row> rows;
  for (const Case& c : make_cases(options, count)) {
    rows.push_back(measure(c, options, launched, devices, device));
  }
  launched.finish();
  const Table table = to_table(rows);
  if (prints) write_page(options, rows, table, transport);
  if (options.bench.json) {
    nlohmann::ordered_json json = bench_header(device.listed.description, 0);
    json["machine"].erase("peak_gflops");  // not measured here
    for (const Row& row : rows) json["rows"].push_back(to_json(row, transport));
    return print_json(json, out);
  }
  out << as_asked(table, options.bench);
  if (options.bench.csv || !options.has_link()) return;
  print_links(rows, out);
  if (options.latency == 0) print_choices(rows, out);
}

}  // namespace

void add_bench_ring(Command app, std::ostream& out) {
  auto options = std::make_shared<Options>();
  app.add_list("--ranks", options->ranks, 1, kMostRanks,
               "Numbers of ranks; under mpirun its own number counts");
  app.add_list("--seq", options->seq, 1, kMostTokens, "Sequence lengths");
  app.add_whole("--heads", options->heads, 1, kMostTokens, "Query heads");
  app.add_whole("--kv-heads", options->kv_heads, 1, kMostTokens,
                "Key and value heads (default: as many as query heads)");
  app.add_whole("--head-dim", options->head_dim, 1, kMostTokens, "Head size");
  app.add_text("--dtype", options->dtype, "f32, bf16 or f16");
  app.add_list("--mask", options->mask,
               "full, causal, window:N, dilated:SEGMENT/RATE, documents:FILE; joined by +");
  app.add_list("--partition", options->partition, "contiguous, zigzag, balanced");
  app.add_list(
      "--impl", options->implementation,
      "ring, heads (all-to-all), product:N (N ranks in a row divide heads, their groups are a ring), "
      "allgather (every rank gathers all of Q, K and V, to compare with)");
  app.add_budget("--link-rate", options->link_rate,
                 "Bytes per second that a rank's link moves, such as 1GiB (default: as fast as memory)");
  app.add_number(
      "--link-share", options->link_share, {.most = 100},
      "Give the link the rate at which messages take this part of the time of computing, such as 0.8");
  app.add_seconds("--latency", options->latency, {.most = 60}, "How late messages arrive, such as 5us");
  app.add_list("--device", options->devices,
               "Devices that the ranks take in turn: cpu, cuda:0, cuda:0,cuda:1");
  add_bench_options(app, options->bench, BenchDevices::given_apart);
  app.footer(
      "Examples:\n  headroom bench ring --ranks 2,4 --seq 8192 --mask causal --impl ring,allgather\n"
      "  headroom bench ring --ranks 8 --seq 16384 --mask window:1024 --partition contiguous --html "
      "ring.html\n"
      "  headroom bench ring --ranks 4 --seq 8192 --heads 32 --kv-heads 8 --head-dim 128 --link-share 0.8\n"
      "  mpirun -n 2 headroom bench ring --seq 32768 --heads 32 --kv-heads 8 --head-dim 128 --threads 1\n"
      "  torchrun --no-python --nproc-per-node 2 headroom bench ring --device cuda:0,cuda:1 --dtype bf16");
  app.callback([options, &out] { run(*options, out); });
}

}  // namespace headroom
