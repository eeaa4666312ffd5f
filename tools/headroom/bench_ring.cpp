// headroom bench ring: attention over ranks beside attention on one: time, waiting, bytes sent and bytes
// held. The ranks are threads of this process, on the CPU or as streams of one GPU; under mpirun they are its
// processes.
#include <fmt/ostream.h>

#include <algorithm>
#include <bit>
#include <cstring>
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
#include "headroom/plan/links.h"
#include "ring_page.h"
#include "ring_run.h"
#include "run_options.h"

namespace headroom {
namespace {

struct Options {
  BenchOptions bench;
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
  std::optional<std::string> latency;

  // The delays of messages between threads; nothing where neither is asked for.
  [[nodiscard]] std::optional<LinkModel> link() const {
    if (!link_rate && !latency) return std::nullopt;
    LinkModel model;
    if (link_rate) model.bytes_per_second = static_cast<double>(*link_rate);
    if (latency) model.latency = parse_latency(*latency);
    return model;
  }
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
  std::optional<AttentionTime> predicted{};  // over a modelled link
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

// A rank's rates, from what the whole machine reached and the part of it that a rank has.
RankRates rank_rates(const Row& row, const LinkModel& link, double part) {
  const AttentionForward lists = lists_of(row.c);
  const Piece all{0, row.c.problem.seq_k};
  const double flops_per_ms = static_cast<double>(row.c.problem.head_dim) *
                              static_cast<double>(count_pairs(row.c.problem, lists, all, all)) * part * 1e3;
  return {.forward = {.flops_per_second = 4 * flops_per_ms / row.single_forward_ms},
          .backward = {.flops_per_second = 10 * flops_per_ms / row.single_backward_ms},
          .link = link};
}

Row measure(const Case& c, const Options& options, MpiRanks* mpi, const BenchDevice& device) {
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
  const int threads = options.bench.threads == 0 ? usable_cores() : options.bench.threads;
  const int each = mpi != nullptr ? threads : std::max(1, threads / c.ranks);
  std::int64_t bytes = 0;  // of all ranks of this process
  const Device where = device.listed.device;
  DeviceDescription description = device.listed.description;
  if (where.kind == DeviceKind::cpu) description.cores = each;
  for (int rank = 0; rank < c.ranks; ++rank) {
    const std::int64_t one =
        rehearse_ring(schedule, views, description, {rank, c.ranks}).reserved(Space::device);
    bytes = mpi != nullptr ? std::max(bytes, one) : bytes + one;
  }
  if (bytes > device.budget) {
    row.reason = fmt::format("needs {}, the budget is {}", format_bytes(bytes), format_bytes(device.budget));
    return row;
  }
  if (mpi != nullptr) {
    row = measure_rank(c, schedule, views, options, mpi->communicator(), *open_backend(where, each));
  } else {
    on_thread_ranks(c.ranks, options.link().value_or(LinkModel{}), [&](Communicator& communicator) {
      const Row measured =
          measure_rank(c, schedule, views, options, communicator, *open_backend(where, each));
      if (communicator.ranks().rank == 0) row = measured;
    });
  }
  if (mpi == nullptr) {
    measure_single(c, views, options, *open_backend(where, threads), row, [] {});
    const double cores_of_rank =
        std::min<double>(each, static_cast<double>(usable_cores()) / static_cast<double>(c.ranks));
    if (options.link() && c.way != AttentionWay::gather) {
      row.predicted = play_attention(c.problem, views.forward, partition, schedule.group(),
                                     rank_rates(row, *options.link(), cores_of_rank / threads));
    }
    return row;
  }
  // The other ranks wait while the first one measures, step by step: all steps together may take longer than
  // the timeout. The sum is 1 where another step follows.
  Communicator& communicator = mpi->communicator();
  if (communicator.ranks().rank == 0) {
    measure_single(c, views, options, *open_backend(where, threads), row,
                   [&] { static_cast<void>(communicator.all_reduce(1.0)); });
    static_cast<void>(communicator.all_reduce(0.0));
  } else {
    while (communicator.all_reduce(0.0) > 0) {
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
  if (row.predicted) {
    json["predicted_forward_ms"] = row.predicted->forward.seconds * 1e3;
    json["predicted_backward_ms"] = row.predicted->backward.seconds * 1e3;
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

// Measured times beside those of the play of the schedule.
Table predicted_table(const std::vector<Row>& rows) {
  Table table({"way", "ranks", "pass", "measured", "predicted", "difference", "waits", "bubbles"});
  for (const Row& row : rows) {
    if (!row.predicted) continue;
    const auto add = [&](std::string_view pass, double measured_ms, const PassTime& time) {
      table.add({name(row.c.way, row.c.group), std::to_string(row.c.ranks), std::string(pass),
                 fmt::format("{:.2f} ms", measured_ms), fmt::format("{:.2f} ms", time.seconds * 1e3),
                 fmt::format("{:+.1f} %", 100 * (time.seconds * 1e3 / measured_ms - 1)),
                 fmt::format("{:.2f} ms", time.waited_seconds * 1e3),
                 fmt::format("{:.1f} %", 100 * time.bubbles())});
    };
    add("forward", row.forward_ms, row.predicted->forward);
    add("backward", row.backward_ms, row.predicted->backward);
  }
  return table;
}

void write_page(const Options& options, const std::vector<Row>& rows, const Table& table,
                std::string_view transport) {
  if (!options.bench.html) return;
  Page page{.title = "Attention over ranks", .subtitle = fmt::format("ranks over {}", transport)};
  page.sections.emplace_back(TableSection{.title = "Measured", .table = table});
  if (options.link()) {
    page.sections.emplace_back(
        TableSection{.title = "Measured and predicted", .table = predicted_table(rows)});
  }
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

// What the play of the schedule would pick with the rates that were reached here and the link's.
void print_choices(const std::vector<Row>& rows, const Options& options, std::ostream& out) {
  for (const Row& row : rows) {
    if (row.c.way != AttentionWay::ring || !row.predicted) continue;
    const AttentionForward lists = lists_of(row.c);
    const WayChoice choice =
        choose_way(row.c.problem, lists, make_partition(row.c.partition, row.c.ranks, row.c.problem, lists),
                   rank_rates(row, *options.link(), 1.0 / row.c.ranks));
    fmt::print(out, "{} over {} ranks: {} is best; {}\n", row.c.mask, row.c.ranks,
               name(choice.way, choice.group), choice.reason);
  }
}

void run(const Options& options, std::ostream& given) {
  const BenchDevice device = bench_device(options.bench);
  std::optional<MpiRanks> mpi;
  if (MpiRanks::launched()) mpi.emplace();
  std::ostream nowhere(nullptr);
  const bool prints = !mpi || mpi->communicator().ranks().rank == 0;
  std::ostream& out = prints ? given : nowhere;
  const std::string_view transport = mpi ? "mpi" : "threads";
  check(!mpi || !options.link(),
        "--link-rate and --latency are for ranks that are threads, and mpirun started this");
  std::optional<int> launched;
  if (mpi) launched = mpi->communicator().ranks().count;
  std::vector<Row> rows;
  for (const Case& c : make_cases(options, launched)) {
    rows.push_back(measure(c, options, mpi ? &*mpi : nullptr, device));
  }
  const Table table = to_table(rows);
  if (prints) write_page(options, rows, table, transport);
  if (options.bench.json) {
    nlohmann::ordered_json json = bench_header(device.listed.description, 0);
    json["machine"].erase("peak_gflops");  // not measured here
    for (const Row& row : rows) json["rows"].push_back(to_json(row, transport));
    return print_json(json, out);
  }
  out << as_asked(table, options.bench);
  if (options.bench.csv || !options.link()) return;
  out << "\n" << predicted_table(rows).text();
  print_choices(rows, options, out);
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
  app.add_text("--latency", options->latency,
               "How late a message of that link is, such as 50us or 2ms (default: not at all)");
  add_bench_options(app, options->bench);
  app.footer(
      "Examples:\n  headroom bench ring --ranks 2,4 --seq 8192 --mask causal --impl ring,allgather\n"
      "  headroom bench ring --ranks 8 --seq 16384 --mask window:1024 --partition contiguous --html "
      "ring.html\n"
      "  headroom bench ring --ranks 2,4,8 --seq 2048 --link-rate 64MiB --latency 1ms\n"
      "  mpirun -n 2 headroom bench ring --seq 32768 --heads 32 --kv-heads 8 --head-dim 128 --threads 1");
  app.callback([options, &out] { run(*options, out); });
}

}  // namespace headroom
