// headroom bench ring: attention over ranks beside attention on one: time, waiting, bytes sent and bytes
// held. The ranks are threads of this process, on the CPU or as streams of GPUs; under mpirun, and on GPUs
// under torchrun, they are its processes.
#include <memory>
#include <optional>
#include <ostream>

#include "attention_run.h"
#include "bench.h"
#include "cli.h"
#include "headroom/core/parse.h"
#include "headroom/core/text.h"
#include "launched_ranks.h"
#include "ring_measure.h"
#include "ring_report.h"
#include "run_options.h"

namespace headroom {
namespace {

constexpr double kMostRestSeconds = 60;

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
  RingLink link;
};

void set_way(RingBenchCase& c, std::string_view text) {
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

// `launched` is the number of processes, where ranks are those.
std::vector<RingBenchCase> make_cases(const Options& options, std::optional<int> launched) {
  std::vector<RingBenchCase> cases;
  for (const std::string& mask : options.mask) {
    for (const std::int64_t seq : options.seq) {
      for (const std::int64_t ranks : launched ? std::vector<std::int64_t>{*launched} : options.ranks) {
        for (const std::string& partition : options.partition) {
          for (const std::string& way : options.implementation) {
            RingBenchCase c{.problem = {.seq_q = seq,
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

void run(Options options, std::ostream& given) {
  check_link(options.link);
  LaunchedRanks launched(options.devices);
  const std::vector<Device>& devices = launched.devices();
  check(launched.communicator() == nullptr || !options.link.given(),
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
  std::vector<RingRow> rows;
  for (const RingBenchCase& c : make_cases(options, count)) {
    rows.push_back(measure_ring(c, options.bench, options.link, launched, devices, device));
  }
  launched.finish();
  if (prints) {
    for (RingRow& row : rows) measure_single(row, options.bench, device);
  }
  if (prints && options.bench.html) write_html(*options.bench.html, ring_page(rows, transport));
  if (options.bench.json) {
    nlohmann::ordered_json json = bench_header(device.listed.description, 0);
    json["machine"].erase("peak_gflops");  // not measured here
    for (const RingRow& row : rows) json["rows"].push_back(to_json(row, transport));
    return print_json(json, out);
  }
  out << as_asked(ring_table(rows), options.bench);
  if (options.bench.csv || !options.link.given()) return;
  out << "\n" << as_asked(link_table(rows), options.bench);
  print_choices(rows, out);
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
  add_link_model_options(app, options->link);
  app.add_seconds(
      "--rest", options->bench.rest_seconds, {.most = kMostRestSeconds},
      "Rest before each timed pass, such as 500ms (default: none): a GPU that is never idle lowers "
      "its clocks to stay within its power");
  app.add_list("--device", options->devices,
               "Devices that the ranks take in turn: cpu, cuda:0, cuda:0,cuda:1");
  add_bench_options(app, options->bench, BenchDevices::given_apart);
  app.footer(
      "Examples:\n  headroom bench ring --ranks 2,4 --seq 8192 --mask causal --impl ring,allgather\n"
      "  headroom bench ring --ranks 8 --seq 16384 --mask window:1024 --partition contiguous --html "
      "ring.html\n"
      "  headroom bench ring --ranks 2,4,8 --seq 2048 --link-rate 64MiB --latency 1ms\n"
      "  headroom bench ring --ranks 4 --seq 8192 --heads 32 --kv-heads 8 --head-dim 128 --link-share 0.8\n"
      "  mpirun -n 2 headroom bench ring --seq 32768 --heads 32 --kv-heads 8 --head-dim 128 --threads 1\n"
      "  torchrun --no-python --nproc-per-node 2 headroom bench ring --device cuda:0,cuda:1 --dtype bf16");
  app.callback([options, &out] { run(*options, out); });
}

}  // namespace headroom
