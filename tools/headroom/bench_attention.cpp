// headroom bench attention: time, memory and error of every implementation over lists of sizes and masks.
// Bytes come from the rehearsal, so a case that does not fit the budget is refused before it runs.
#include <fmt/ostream.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "attention_run.h"
#include "bench.h"
#include "cli.h"
#include "headroom/attention.h"
#include "headroom/core/bytes.h"
#include "headroom/core/text.h"
#include "headroom/device.h"
#include "headroom/report.h"
#include "progress.h"

namespace headroom {
namespace {

struct Options {
  BenchOptions bench;
  std::vector<std::int64_t> seq = {1024, 4096};
  std::vector<std::int64_t> head_dim = {64};
  std::vector<std::int64_t> batch = {1};
  std::vector<std::int64_t> heads = {8};
  std::int64_t kv_heads = 0;
  std::int64_t keys = 0;
  std::vector<std::string> dtype = {"f32"};
  std::vector<std::string> mask = {"causal"};
  std::vector<std::string> implementation;  // empty: what is worth comparing on the device
  std::optional<std::string> preset;
  bool explain = false;
  bool nondeterministic = false;
};

struct Row {
  AttentionRunCase c;
  std::string status = "ok";  // ok, oom or unsupported
  std::string reason;         // where it is not ok
  double forward_ms = 0;
  double backward_ms = 0;
  std::int64_t peak_bytes = 0;
  std::int64_t reserved_bytes = 0;     // what was really asked of the system; a GPU holds several copies
  std::int64_t planned_bytes = 0;      // what that should be
  std::int64_t free_change_bytes = 0;  // GPU: of its free memory, from after the warm-up to the end
  std::int64_t added_bytes = 0;        // of those, over inputs, results and gradients
  std::int64_t saved_bytes = 0;
  double error = 0;
  double forward_gflops = 0;
  double backward_gflops = 0;
  double gflops = 0;  // of both
  double forward_of_peak = 0;
  double backward_of_peak = 0;
  std::vector<double> peak_gflops;  // measured beside the steps
};

std::vector<AttentionRunCase> make_cases(Options options) {
  if (options.preset) {
    options.seq = {256, 1024, 4096, 8192, 16384};
    options.head_dim = {16, 32, 64, 128};
    options.batch = {8};
    options.heads = {1};
    options.mask = {"full"};
  }
  std::vector<AttentionRunCase> cases;
  for (const std::string& dtype : options.dtype) {
    for (const std::int64_t batch : options.batch) {
      for (const std::int64_t heads : options.heads) {
        for (const std::int64_t head_dim : options.head_dim) {
          for (const std::string& mask : options.mask) {
            for (const std::int64_t seq : options.seq) {
              for (const std::string& implementation : options.implementation) {
                AttentionRunCase c{.problem = {.batch = batch,
                                               .seq_q = seq,
                                               .seq_k = options.keys == 0 ? seq : options.keys,
                                               .heads_q = heads,
                                               .heads_kv = options.kv_heads == 0 ? heads : options.kv_heads,
                                               .head_dim = head_dim,
                                               .dtype = parse_dtype(dtype),
                                               .deterministic = !options.nondeterministic},
                                   .mask = mask,
                                   .document_starts = {},
                                   .implementation = implementation};
                c.document_starts = apply_mask(c.problem, mask);
                validate(c.problem);
                cases.push_back(std::move(c));
              }
            }
          }
        }
      }
    }
  }
  return cases;
}

Layout rehearse(const AttentionRunCase& c, const AttentionImplementation& implementation,
                const DeviceDescription& device, std::int64_t copies = 1) {
  Context context(device);
  {
    AttentionRun run(context, c, implementation, copies);
    run.forward();
    run.backward();
    static_cast<void>(run.sampled_error());
    if (device.kind == DeviceKind::cpu) static_cast<void>(run.peak_flops());
  }
  return make_layout(std::move(context).take_ledger());
}

void set_rates(const std::vector<double>& forward, const std::vector<double>& backward, double pair_flops,
               Row& row) {
  row.forward_ms = median(forward) * 1e3;
  row.backward_ms = median(backward) * 1e3;
  row.forward_gflops = 4 * pair_flops / (row.forward_ms * 1e6);
  row.backward_gflops = 10 * pair_flops / (row.backward_ms * 1e6);
  row.gflops = 14 * pair_flops / ((row.forward_ms + row.backward_ms) * 1e6);
}

// On a GPU: by its own clock, forward and backward in turn, each on another copy of the inputs, and queued as
// in training, so that launching is hidden behind what takes longer. Nothing may be allocated after the
// warm-up, in which the driver loads the kernels; it goes over every copy, since backward takes the next one.
void time_steps_on_gpu(Context& context, AttentionRun& run, std::int64_t copies, const Options& options,
                       double pair_flops, Row& row) {
  std::size_t turn = 0;
  const std::int64_t warmup = std::max<std::int64_t>(options.bench.warmup, copies == 1 ? 0 : copies);
  for (std::int64_t i = 0; i < warmup; ++i, ++turn) {
    run.forward(turn);
    run.backward(turn);
  }
  context.synchronize();
  const auto free_bytes = [&] { return find_device(context.device()).memory.free_bytes; };
  const std::int64_t free_before = free_bytes();
  std::vector<double> forward;
  std::vector<double> backward;
  constexpr double kQueuedSeconds = 0.02;
  constexpr std::size_t kMostPairs = Context::kMostTimed / 2;
  std::size_t queued = 1;
  double spent = 0;
  for (std::size_t left = static_cast<std::size_t>(options.bench.steps);
       left > 0 && spent <= options.bench.max_seconds;) {
    const std::size_t pairs = std::min(queued, left);
    const std::vector<double> seconds = context.device_seconds(2 * pairs, [&](std::size_t i) {
      if (i % 2 == 0) {
        run.forward(turn);
      } else {
        run.backward(++turn);  // of a copy that forward did not just touch
      }
    });
    for (std::size_t i = 0; i < pairs; ++i) {
      forward.push_back(seconds[2 * i]);
      backward.push_back(seconds[2 * i + 1]);
    }
    const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
    spent += sum;
    left -= pairs;
    queued = static_cast<std::size_t>(
        std::clamp(kQueuedSeconds * static_cast<double>(pairs) / sum, 1.0, static_cast<double>(kMostPairs)));
  }
  row.free_change_bytes = free_bytes() - free_before;
  set_rates(forward, backward, pair_flops, row);
}

// Forward and backward in turn, as in training, with the machine's peak measured between them: each time is
// held against the peak of that moment.
void time_steps(AttentionRun& run, const Options& options, double pair_flops, Row& row) {
  for (int i = 0; i < options.bench.warmup; ++i) {
    run.forward();
    run.backward();
  }
  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<double> forward_of_peak;
  std::vector<double> backward_of_peak;
  double before = run.peak_flops();
  repeat(options.bench, [&] {
    forward.push_back(seconds_of([&] { run.forward(); }));
    const double between = run.peak_flops();
    backward.push_back(seconds_of([&] { run.backward(); }));
    const double after = run.peak_flops();
    forward_of_peak.push_back(4 * pair_flops / forward.back() / ((before + between) / 2));
    backward_of_peak.push_back(10 * pair_flops / backward.back() / ((between + after) / 2));
    row.peak_gflops.insert(row.peak_gflops.end(), {between / 1e9, after / 1e9});
    before = after;
  });
  set_rates(forward, backward, pair_flops, row);
  row.forward_of_peak = median(forward_of_peak);
  row.backward_of_peak = median(backward_of_peak);
}

double pairs_of(const AttentionRunCase& c) {
  const AttentionProblem& p = c.problem;
  AttentionForward views;
  if (p.mask.max_documents > 0) {
    views.document_starts = TensorView(const_cast<std::int32_t*>(c.document_starts.data()), DType::i32,
                                       {1, p.mask.max_documents + 1});
  }
  double pairs = 0;
  for (std::int64_t h = 0; h < p.heads_q; ++h) {
    pairs += static_cast<double>(mask_view(p, views, 0, h).pairs(0, p.seq_q, {0, p.seq_k}));
  }
  return pairs * static_cast<double>(p.batch);
}

// How many copies of a case's inputs do not fit a GPU's cache twice over, as far as the budget allows.
std::int64_t input_copies(const AttentionRunCase& c, const AttentionImplementation& implementation,
                          const DeviceDescription& device, std::int64_t budget) {
  if (device.kind == DeviceKind::cpu) return 1;
  constexpr std::int64_t kMost = 16;
  const std::int64_t inputs = std::max<std::int64_t>(minimum_bytes(c.problem, Pass::forward), 1);
  const std::int64_t wanted = std::clamp<std::int64_t>(2 * device.l2_bytes / inputs + 1, 1, kMost);
  const std::int64_t one = rehearse(c, implementation, device, 1).reserved(Space::device);
  const std::int64_t each = rehearse(c, implementation, device, 2).reserved(Space::device) - one;
  return each <= 0 ? wanted : std::clamp<std::int64_t>(1 + (budget - one) / each, 1, wanted);
}

Row measure(const AttentionRunCase& c, const Options& options, Backend& backend, std::int64_t budget) {
  Row row;
  row.c = c;
  const AttentionImplementation& implementation =
      find_implementation(attention_implementations(), c.implementation);
  const Support support = implementation.supports(c.problem, backend.description());
  if (!support) {
    row.status = "unsupported";
    row.reason = support.reason();
    return row;
  }
  const Layout layout = rehearse(c, implementation, backend.description());
  row.peak_bytes = layout.reserved(Space::device);
  row.added_bytes =
      implementation.saved_bytes(c.problem) +
      std::max(implementation.workspace_bytes(c.problem, backend.description(), Pass::forward),
               implementation.workspace_bytes(c.problem, backend.description(), Pass::backward));
  row.saved_bytes = implementation.saved_bytes(c.problem) +
                    dense_bytes(DType::f32, {c.problem.batch, c.problem.heads_q, c.problem.seq_q});
  if (row.peak_bytes > budget) {
    row.status = "oom";
    row.reason = format_bytes(row.peak_bytes);
    if (backend.device().kind == DeviceKind::cuda) {
      const MemoryStatus memory = find_device(backend.device()).memory;
      if (memory.held_by_others_bytes > 0) row.reason += "; " + describe_holders(memory);
    }
    return row;
  }
  const std::int64_t copies = input_copies(c, implementation, backend.description(), budget);
  const Layout layout_of_copies =
      copies == 1 ? layout : rehearse(c, implementation, backend.description(), copies);
  Context context(backend, layout_of_copies);
  row.planned_bytes = layout_of_copies.reserved(Space::device);
  row.reserved_bytes = backend.reserved_bytes(Space::device);
  AttentionRun run(context, row.c, implementation, copies);
  const double pair_flops = static_cast<double>(c.problem.head_dim) * pairs_of(c);
  if (backend.device().kind == DeviceKind::cuda) {
    time_steps_on_gpu(context, run, copies, options, pair_flops, row);
  } else {
    time_steps(run, options, pair_flops, row);
  }
  row.error = run.sampled_error();
  return row;
}

// The largest seq of a case's kind whose rehearsal fits.
std::int64_t largest_seq(AttentionRunCase c, bool own_keys, const DeviceDescription& device,
                         std::int64_t budget) {
  const AttentionImplementation& implementation =
      find_implementation(attention_implementations(), c.implementation);
  const auto fits = [&](std::int64_t seq) {
    c.problem.seq_q = seq;
    if (!own_keys) c.problem.seq_k = seq;
    try {
      return implementation.supports(c.problem, device) &&
             rehearse(c, implementation, device).reserved(Space::device) <= budget;
    } catch (const Error&) {
      return false;  // more bytes than 64 bits count
    }
  };
  std::int64_t low = 0;
  std::int64_t high = 1;
  while (high < (std::int64_t{1} << 31) && fits(high)) high *= 2;
  while (low + 1 < high) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

// Exponent of the growth with seq: the slope of a straight line through the logarithms.
std::optional<double> growth(const std::vector<std::pair<double, double>>& points) {
  if (points.size() < 2) return std::nullopt;
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (const auto& [x, y] : points) {
    sx += std::log(x);
    sy += std::log(y);
    sxx += std::log(x) * std::log(x);
    sxy += std::log(x) * std::log(y);
  }
  const auto n = static_cast<double>(points.size());
  const double spread = n * sxx - sx * sx;
  if (spread <= 0) return std::nullopt;
  return (n * sxy - sx * sy) / spread;
}

// How one kind of case grows with seq.
struct Growth {
  std::string kind;
  std::optional<double> time;  // exponents
  std::optional<double> bytes;
  std::int64_t largest_seq = 0;  // that fits the budget
};

std::string kind_of(const AttentionRunCase& c) {
  const AttentionProblem& p = c.problem;
  return fmt::format("{} {} {} batch {} heads {} d {}", c.implementation, name(p.dtype), c.mask, p.batch,
                     p.heads_q, p.head_dim);
}

std::vector<Growth> fit_growth(const std::vector<Row>& rows, const Options& options,
                               const DeviceDescription& device, std::int64_t budget) {
  std::map<std::string, std::vector<const Row*>> kinds;
  for (const Row& row : rows) {
    if (row.status != "unsupported") kinds[kind_of(row.c)].push_back(&row);
  }
  std::vector<Growth> fits;
  for (const auto& [kind, members] : kinds) {
    std::vector<std::pair<double, double>> times;
    std::vector<std::pair<double, double>> bytes;
    for (const Row* row : members) {
      const auto seq = static_cast<double>(row->c.problem.seq_q);
      if (row->status == "ok") times.emplace_back(seq, row->forward_ms + row->backward_ms);
      if (row->peak_bytes > 0) bytes.emplace_back(seq, static_cast<double>(row->peak_bytes));
    }
    fits.push_back(
        {kind, growth(times), growth(bytes), largest_seq(members[0]->c, options.keys > 0, device, budget)});
  }
  return fits;
}

nlohmann::ordered_json to_json(const Row& row, const Device& device) {
  const AttentionProblem& p = row.c.problem;
  return {{"impl", row.c.implementation},
          {"device", to_string(device)},
          {"dtype", name(p.dtype)},
          {"batch", p.batch},
          {"heads_q", p.heads_q},
          {"heads_kv", p.heads_kv},
          {"seq", p.seq_q},
          {"keys", p.seq_k},
          {"head_dim", p.head_dim},
          {"mask", row.c.mask},
          {"deterministic", p.deterministic},
          {"forward_ms", row.forward_ms},
          {"backward_ms", row.backward_ms},
          {"peak_bytes", row.peak_bytes},
          {"added_bytes", row.added_bytes},
          {"saved_bytes", row.saved_bytes},
          {"reserved_bytes", row.reserved_bytes},
          {"planned_bytes", row.planned_bytes},
          {"free_change_bytes", row.free_change_bytes},
          {"error", row.error},
          {"gflops", row.gflops},
          {"forward_gflops", row.forward_gflops},
          {"backward_gflops", row.backward_gflops},
          {"forward_of_peak", row.forward_of_peak},
          {"backward_of_peak", row.backward_of_peak},
          {"status", row.status},
          {"reason", row.reason}};
}

nlohmann::ordered_json to_json(const Growth& fit) {
  const auto exponent = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  return {{"kind", fit.kind},
          {"time_exponent", exponent(fit.time)},
          {"bytes_exponent", exponent(fit.bytes)},
          {"largest_seq", fit.largest_seq}};
}

// What is compared where nobody says: on the CPU ours and the baseline, on a GPU every row that is chosen
// there.
std::vector<std::string> default_implementations(const DeviceDescription& device) {
  if (device.kind == DeviceKind::cpu) return {"tiled", "naive"};
  std::vector<std::string> names;
  for (const AttentionImplementation& row : attention_implementations()) {
    if (row.only_when_named) continue;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const AttentionProblem problem{.seq_q = 128, .seq_k = 128, .head_dim = 64, .dtype = dtype};
      if (!row.supports(problem, device)) continue;
      names.emplace_back(row.name);
      break;
    }
  }
  return names;
}

// What ran, or would: how it was measured, how it grows and what fits.
void print_summary(const std::vector<Row>& rows, const std::vector<Growth>& fits, double peak,
                   const Backend& backend, std::int64_t budget, std::ostream& out) {
  const DeviceDescription& device = backend.description();
  if (device.kind == DeviceKind::cpu) {
    fmt::print(out,
               "\npercentages are of the peak measured between the steps; its median is {:.0f} GFLOP/s on {} "
               "threads with {}\n\n",
               peak, device.cores, name(device.simd));
  } else {
    std::int64_t least_free = 0;
    bool as_planned = true;
    for (const Row& row : rows) {
      least_free = std::min(least_free, row.free_change_bytes);
      as_planned &= row.reserved_bytes == row.planned_bytes;
    }
    fmt::print(
        out,
        "\ntimes are the GPU's own, inputs rotate past its cache; memory reserved is {} what was planned; "
        "after the warm-up {} of free memory went\n\n",
        as_planned ? "exactly" : "NOT", format_bytes(-least_free));
  }
  for (const Growth& fit : fits) {
    fmt::print(out, "{}: {}{}largest seq in {}: {}\n", fit.kind,
               fit.time ? fmt::format("time ~ seq^{:.2f}, ", *fit.time) : "",
               fit.bytes ? fmt::format("memory ~ seq^{:.2f}, ", *fit.bytes) : "", format_bytes(budget),
               format_count(fit.largest_seq));
  }
}

void print_explanation(const AttentionProblem& problem, const DeviceDescription& device, std::ostream& out) {
  const auto choice = choose(attention_implementations(), problem, device);
  fmt::print(out, "\nchosen for the first case: {}\n",
             choice.implementation == nullptr ? "none" : choice.implementation->name);
  for (const AttentionImplementation& row : attention_implementations()) {
    const Support support = row.supports(problem, device);
    fmt::print(out, "{}: {}\n", row.name,
               !support              ? support.reason()
               : row.only_when_named ? "serves it where it is named"
                                     : "serves it");
  }
}

void run(Options options, std::ostream& out) {
  const auto [listed, budget] = bench_device(options.bench);
  const bool on_cpu = listed.device.kind == DeviceKind::cpu;
  check(on_cpu || options.bench.threads == 0, "--threads means nothing with --device {}",
        options.bench.device);
  check(!on_cpu || !options.nondeterministic,
        "--nondeterministic means nothing on a CPU, whose gradients always have the same bits");
  if (options.implementation.empty()) options.implementation = default_implementations(listed.description);
  const std::vector<AttentionRunCase> cases = make_cases(options);
  for (const AttentionRunCase& c : cases)
    static_cast<void>(find_implementation(attention_implementations(), c.implementation));
  const std::unique_ptr<Backend> opened = open_backend(listed.device, options.bench.threads);
  Backend& backend = *opened;
  std::vector<Row> rows;
  Progress progress("case");
  for (const AttentionRunCase& c : cases) {
    progress.at(static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(cases.size()));
    rows.push_back(measure(c, options, backend, budget));
  }

  const std::vector<Growth> fits = fit_growth(rows, options, backend.description(), budget);
  std::vector<double> peaks;
  for (const Row& row : rows) peaks.insert(peaks.end(), row.peak_gflops.begin(), row.peak_gflops.end());
  const double peak = peaks.empty() ? 0 : median(peaks);

  Table table({"impl", "dtype", "batch", "heads", "seq", "head_dim", "mask", "forward_ms", "backward_ms",
               "peak", "added", "saved", "error", "forward", "backward", "status"});
  std::vector<BenchPoint> points;
  for (const Row& row : rows) {
    const AttentionProblem& p = row.c.problem;
    const bool ran = row.status == "ok";
    points.push_back({kind_of(row.c), p.seq_q,
                      ran ? std::optional(row.forward_ms + row.backward_ms) : std::nullopt, row.peak_bytes});
    const auto cell = [&](const std::string& text) { return ran ? text : std::string("-"); };
    const auto rate = [&](double gflops, double of_peak) {
      return cell(on_cpu ? fmt::format("{:.0f} GFLOP/s {:.0f}%", gflops, 100 * of_peak)
                         : fmt::format("{:.1f} TFLOP/s", gflops / 1e3));
    };
    table.add(
        {row.c.implementation, std::string(name(p.dtype)), std::to_string(p.batch),
         p.heads_q == p.heads_kv ? std::to_string(p.heads_q) : fmt::format("{}/{}", p.heads_q, p.heads_kv),
         p.seq_q == p.seq_k ? std::to_string(p.seq_q) : fmt::format("{}/{}", p.seq_q, p.seq_k),
         std::to_string(p.head_dim), row.c.mask, cell(fmt::format("{:.3f}", row.forward_ms)),
         cell(fmt::format("{:.3f}", row.backward_ms)), bytes_cell(row.peak_bytes),
         bytes_cell(row.added_bytes), bytes_cell(row.saved_bytes), cell(fmt::format("{:.1e}", row.error)),
         rate(row.forward_gflops, row.forward_of_peak), rate(row.backward_gflops, row.backward_of_peak),
         row.reason.empty() ? row.status : fmt::format("{}: {}", row.status, row.reason)});
  }
  write_bench_page(options.bench, "Attention, forward and backward", "seq", budget, std::move(points), table,
                   backend.description());
  if (options.bench.json) {
    nlohmann::ordered_json json = bench_header(backend.description(), peak);
    for (const Row& row : rows) json["rows"].push_back(to_json(row, listed.device));
    json["budget_bytes"] = budget;
    json["growth"] = nlohmann::ordered_json::array();
    for (const Growth& fit : fits) json["growth"].push_back(to_json(fit));
    return print_json(json, out);
  }
  out << as_asked(table, options.bench);
  if (options.bench.csv) return;
  if (std::ranges::any_of(rows, [](const Row& row) { return row.status != "unsupported"; })) {
    print_summary(rows, fits, peak, backend, budget, out);
  }
  if (options.explain) print_explanation(cases[0].problem, backend.description(), out);
}

}  // namespace

void add_bench_attention(Command app, std::ostream& out) {
  auto options = std::make_shared<Options>();
  const std::vector<CLI::Option*> sizes = {
      app.add_list("--seq", options->seq, 1, kMostTokens, "Sequence lengths"),
      app.add_list("--head-dim", options->head_dim, 1, kMostTokens, "Head sizes"),
      app.add_list("--batch", options->batch, 1, kMostTokens, "Batch sizes"),
      app.add_list("--heads", options->heads, 1, kMostTokens, "Query heads"),
      app.add_whole("--kv-heads", options->kv_heads, 1, kMostTokens,
                    "Key and value heads (default: as many as query heads)"),
      app.add_whole("--keys", options->keys, 1, kMostTokens,
                    "Keys and values of a sequence, with the last query at the last key (default: as many as "
                    "queries)"),
      app.add_list("--mask", options->mask,
                   "full, causal, window:N, dilated:SEGMENT/RATE, documents:FILE; joined by +")};
  app.add_list("--dtype", options->dtype, "f32, bf16, f16");
  app.add_list("--impl", options->implementation,
               "tiled, naive, naive-recompute, reference; on a GPU sm90, bf16x3, tf32x3, portable, tf32 "
               "(default: tiled "
               "and naive, or those of the GPU that are chosen by themselves)");
  CLI::Option* preset = app.add_choice("--preset", options->preset, {"seed-grid"},
                                       "batch 8, one head, d 16 to 128, seq 256 to 16384, full");
  for (CLI::Option* size : sizes) preset->excludes(size);
  const MachineOutputs outputs = add_bench_options(app, options->bench);
  app.add_flag("--nondeterministic", options->nondeterministic,
               "Let gradients differ in their last bits from run to run where that is faster (on a GPU)");
  app.add_flag("--explain", options->explain,
               "Say which implementation would be chosen, and why not the others")
      ->excludes(outputs.json)
      ->excludes(outputs.csv);
  app.footer(
      "Examples:\n  headroom bench attention --seq 1024,4096 --mask full,causal --impl tiled\n"
      "  headroom bench attention --preset seed-grid --budget 8GiB --max-seconds 2\n"
      "  headroom bench attention --device cuda:0 --dtype bf16 --seq 16384 --head-dim 128");
  app.callback([options, &out] { run(*options, out); });
}

}  // namespace headroom
