// headroom bench loss: what a training step pays for linear cross-entropy, in time, memory and error, of
// every implementation over lists of sizes. Bytes come from the rehearsal, so a case that does not fit the
// budget is refused before it runs.
#include <fmt/ostream.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ostream>

#include "bench.h"
#include "cli.h"
#include "headroom/core/bytes.h"
#include "headroom/core/elements.h"
#include "headroom/core/random.h"
#include "headroom/cpu.h"
#include "headroom/loss.h"
#include "headroom/ops.h"
#include "headroom/plan/catalogue.h"
#include "progress.h"

namespace headroom {
namespace {

struct Options {
  BenchOptions bench;
  std::vector<std::int64_t> tokens = {1024, 4096};
  std::vector<std::int64_t> hidden = {64};
  std::vector<std::int64_t> vocab = {32'000};
  std::vector<std::string> dtype = {"f32"};
  std::vector<std::string> implementation = {"fused", "chunked-recompute", "chunked", "standard"};
  std::vector<std::int64_t> chunk_tokens = {0};
  std::vector<std::int64_t> chunk_vocab = {0};
};

struct Case {
  LossProblem problem;
  std::string implementation;
};

struct Row {
  Case c;
  std::string status = "ok";  // ok, oom or unsupported
  std::string reason;         // where it is not ok
  double milliseconds = 0;    // of a step
  std::int64_t peak_bytes = 0;
  std::int64_t added_bytes = 0;  // of those, over inputs, loss and gradients
  double error = 0;
  double gflops = 0;
  double of_peak = 0;
  std::string device;
  std::vector<double> peak_gflops;  // measured beside the steps
};

std::vector<Case> make_cases(const Options& options) {
  std::vector<Case> cases;
  const auto add = [&](const LossProblem& problem) {
    validate(problem);
    for (const std::string& implementation : options.implementation) {
      static_cast<void>(find_implementation(loss_implementations(), implementation));
      cases.push_back({problem, implementation});
    }
  };
  for (const std::string& dtype : options.dtype) {
    for (const std::int64_t hidden : options.hidden) {
      for (const std::int64_t vocab : options.vocab) {
        for (const std::int64_t tokens : options.tokens) {
          for (const std::int64_t chunk_tokens : options.chunk_tokens) {
            for (const std::int64_t chunk_vocab : options.chunk_vocab) {
              // Not reduced: the same arithmetic, and each token's loss can be held against fp64.
              add({.tokens = tokens,
                   .hidden = hidden,
                   .vocab = vocab,
                   .dtype = parse_dtype(dtype),
                   .reduction = Reduction::none,
                   .chunk_tokens = chunk_tokens,
                   .chunk_vocab = chunk_vocab});
            }
          }
        }
      }
    }
  }
  return cases;
}

// Inputs, loss, gradients and what is kept, for the run; workspaces come and go with forward and backward.
class LossRun {
 public:
  LossRun(Context& context, const Case& c)
      : context_(context),
        problem_(c.problem),
        implementation_(find_implementation(loss_implementations(), c.implementation)) {
    const LossProblem& p = problem_;
    if (!context.phantom() && !context.description().host_accessible()) pool_.emplace(0);
    context_.phase(Phase::load, [&] {
      const auto make = [&](std::string_view name, Category category, DType dtype, const Shape& shape) {
        return context_.allocate(
            {.name = name, .category = category, .dtype = dtype, .shape = shape, .lifetime = Lifetime::run});
      };
      hidden_ = make("hidden", Category::activations, p.dtype, {p.tokens, p.hidden});
      weight_ = make("weight", Category::parameters, p.dtype, {p.vocab, p.hidden});
      labels_ = make("labels", Category::activations, DType::i32, {p.tokens});
      loss_ = make("loss", Category::activations, DType::f32, {p.tokens});
      loss_gradient_ = make("loss gradient", Category::gradients, DType::f32, {p.tokens});
      hidden_gradient_ = make("hidden gradient", Category::gradients, p.dtype, {p.tokens, p.hidden});
      weight_gradient_ = make("weight gradient", Category::gradients, DType::f32, {p.vocab, p.hidden});
      saved_ = make("saved", Category::logits, DType::u8, {implementation_.saved_bytes(p)});
      Staging staging(context_);
      run_on_host([&](const Stream& stream) {
        fill_normal(hidden_, 1, 1, staging, stream);
        fill_normal(weight_, 2, 1 / std::sqrt(static_cast<float>(p.hidden)), staging, stream);
        std::vector<std::int32_t> labels(static_cast<std::size_t>(p.tokens));
        for (std::size_t t = 0; t < labels.size(); ++t) {
          labels[t] = static_cast<std::int32_t>(Random(3).below(t, static_cast<std::uint64_t>(p.vocab)));
        }
        staging.upload(labels_, std::as_bytes(std::span(labels)));
      });
      fill(context_, loss_gradient_, 1);
      zero(context_, weight_gradient_);
    });
  }

  // Backward makes the loss on its way; only those that gain nothing from that run forward before it.
  void step() {
    context_.phase(Phase::step, [&] {
      if (!implementation_.name.starts_with("fused"))
        loss_forward(context_, problem_, views(), implementation_.name);
      loss_backward(context_, problem_,
                    {.forward = views(),
                     .loss_gradient = loss_gradient_,
                     .hidden_gradient = hidden_gradient_,
                     .weight_gradient = weight_gradient_},
                    implementation_.name);
    });
  }

  double step_seconds() {
    return context_.device_seconds(1, [&](std::size_t) { step(); })[0];
  }

  // Measured beside the steps on a CPU; a GPU's is the catalogue's, and 0 where it has none.
  double peak_flops() {
    const DeviceDescription& device = context_.description();
    if (device.kind == DeviceKind::cuda) {
      const CatalogueEntry* entry = find_in_catalogue(device);
      if (entry == nullptr) return 0;
      return problem_.dtype == DType::f32 ? entry->device.f32_flops : entry->device.half_flops;
    }
    double rate = 0;
    context_.phase(Phase::peak,
                   [&] { context_.run([&](const Stream& stream) { rate = measured_peak_flops(stream); }); });
    return rate;
  }

  // Largest difference of loss and dHidden from fp64, over a few tokens.
  double sampled_error() {
    double worst = 0;
    context_.phase(Phase::compare, [&] {
      Staging staging(context_);
      std::array<std::vector<std::byte>, 5> memory;
      const OnHost views{.hidden = staging.on_host(hidden_, memory[0]),
                         .weight = staging.on_host(weight_, memory[1]),
                         .labels = staging.on_host(labels_, memory[2]),
                         .loss = staging.on_host(loss_, memory[3]),
                         .hidden_gradient = staging.on_host(hidden_gradient_, memory[4])};
      run_on_host([&](const Stream& stream) {
        for (const std::int64_t token : {std::int64_t{0}, problem_.tokens / 2, problem_.tokens - 1}) {
          worst = std::max(worst, token_error(views, token, stream));
        }
      });
    });
    return worst;
  }

 private:
  [[nodiscard]] LossForward views() const {
    return {.hidden = hidden_,
            .weight = weight_,
            .labels = labels_,
            .token_weights = {},
            .loss = loss_,
            .saved = saved_};
  }

  // With threads, where the device has none of its own.
  template <class Body>
  void run_on_host(const Body& body) {
    context_.run([&](Stream stream) {
      if (pool_) stream.pool = &*pool_;
      body(stream);
    });
  }

  struct OnHost {
    TensorView hidden, weight, labels, loss, hidden_gradient;
  };

  [[nodiscard]] double token_error(const OnHost& views, std::int64_t token, const Stream& stream) const {
    const LossProblem& p = problem_;
    std::vector<double> x(static_cast<std::size_t>(p.hidden));
    for (std::int64_t i = 0; i < p.hidden; ++i) {
      x[static_cast<std::size_t>(i)] = read_element(views.hidden, token * p.hidden + i);
    }
    std::vector<double> z(static_cast<std::size_t>(p.vocab));
    constexpr std::int64_t kWords = 1024;
    parallel_for(stream, (p.vocab + kWords - 1) / kWords, [&](std::int64_t block) {
      for (std::int64_t v = block * kWords; v < std::min(p.vocab, (block + 1) * kWords); ++v) {
        double& sum = z[static_cast<std::size_t>(v)];
        for (std::int64_t i = 0; i < p.hidden; ++i) {
          sum += x[static_cast<std::size_t>(i)] * read_element(views.weight, v * p.hidden + i);
        }
      }
    });
    const double max = *std::ranges::max_element(z);
    double sum = 0;
    for (const double logit : z) sum += std::exp(logit - max);
    const double lse = max + std::log(sum);
    const auto label = static_cast<std::size_t>(views.labels.data<std::int32_t>()[token]);
    double worst = std::abs(lse - z[label] - static_cast<double>(views.loss.data<float>()[token]));
    // dz, in place
    for (double& logit : z) logit = std::exp(logit - lse);
    z[label] -= 1;
    constexpr std::int64_t kColumns = 32;
    const std::int64_t parts = (p.hidden + kColumns - 1) / kColumns;
    std::vector<double> part_worst(static_cast<std::size_t>(parts));
    parallel_for(stream, parts, [&](std::int64_t part) {
      const std::int64_t begin = part * kColumns;
      const std::int64_t columns = std::min(kColumns, p.hidden - begin);
      double gradient[kColumns] = {};
      for (std::int64_t v = 0; v < p.vocab; ++v) {
        for (std::int64_t i = 0; i < columns; ++i) {
          gradient[i] +=
              z[static_cast<std::size_t>(v)] * read_element(views.weight, v * p.hidden + begin + i);
        }
      }
      double& largest = part_worst[static_cast<std::size_t>(part)];
      for (std::int64_t i = 0; i < columns; ++i) {
        const double ours = read_element(views.hidden_gradient, token * p.hidden + begin + i);
        largest = std::max(largest, std::abs(gradient[i] - ours));
      }
    });
    for (const double value : part_worst) worst = std::max(worst, value);
    return worst;
  }

  Context& context_;
  const LossProblem& problem_;
  const LossImplementation& implementation_;
  std::optional<ThreadPool> pool_;
  Tensor hidden_, weight_, labels_, loss_, loss_gradient_, hidden_gradient_, weight_gradient_, saved_;
};

Layout rehearse(const Case& c, const DeviceDescription& device) {
  Context context(device);
  {
    LossRun run(context, c);
    run.step();
    static_cast<void>(run.peak_flops());
    static_cast<void>(run.sampled_error());
  }
  return make_layout(std::move(context).take_ledger());
}

// Decimal, as memory is sold: 79.7 GB.
std::string decimal(std::int64_t bytes) {
  return bytes < 1'000'000'000 ? fmt::format("{:.1f} MB", static_cast<double>(bytes) * 1e-6)
                               : fmt::format("{:.1f} GB", static_cast<double>(bytes) * 1e-9);
}

void time_steps(LossRun& run, const BenchOptions& options, double step_flops, Row& row) {
  for (int i = 0; i < options.warmup; ++i) run.step();
  std::vector<double> seconds;
  std::vector<double> of_peak;
  double before = run.peak_flops();
  repeat(options, [&] {
    seconds.push_back(run.step_seconds());
    const double after = run.peak_flops();
    of_peak.push_back(before + after > 0 ? step_flops / seconds.back() / ((before + after) / 2) : 0);
    row.peak_gflops.push_back(after * 1e-9);
    before = after;
  });
  row.milliseconds = median(seconds) * 1e3;
  row.gflops = step_flops / (row.milliseconds * 1e6);
  row.of_peak = median(of_peak);
}

Row measure(const Case& c, const BenchOptions& options, Backend& backend, std::int64_t budget) {
  Row row;
  row.c = c;
  row.device = options.device;
  const LossImplementation& implementation = find_implementation(loss_implementations(), c.implementation);
  const Support support = implementation.supports(c.problem, backend.description());
  const bool chunks_asked = c.problem.chunk_tokens > 0 || c.problem.chunk_vocab > 0;
  const bool never_chunks = c.implementation == "standard" || c.implementation == "reference";
  if (!support || (chunks_asked && never_chunks)) {
    row.status = "unsupported";
    row.reason = support ? "it takes all tokens and words at once, not in chunks" : support.reason();
    return row;
  }
  const Layout layout = rehearse(c, backend.description());
  const CategoryBytes& at_peak = layout.rehearsal.usage(Space::device).at_peak;
  const std::int64_t kept_bytes = at_peak[static_cast<std::size_t>(Category::logits)];
  row.peak_bytes = layout.reserved(Space::device);
  row.added_bytes = at_peak[static_cast<std::size_t>(Category::workspace)] + kept_bytes;
  if (row.peak_bytes > budget) {
    row.status = "oom";
    row.reason = fmt::format("asks for {}{}, the budget is {}", decimal(row.peak_bytes),
                             kept_bytes == 0 ? "" : fmt::format(", {} of them logits", decimal(kept_bytes)),
                             decimal(budget));
    return row;
  }
  Context context(backend, layout);
  LossRun run(context, row.c);
  time_steps(run, options, flops(c.problem, Pass::forward) + flops(c.problem, Pass::backward), row);
  row.error = run.sampled_error();
  return row;
}

nlohmann::ordered_json to_json(const Row& row) {
  const LossProblem& p = row.c.problem;
  return {{"impl", row.c.implementation},
          {"device", row.device},
          {"tokens", p.tokens},
          {"hidden", p.hidden},
          {"vocab", p.vocab},
          {"dtype", name(p.dtype)},
          {"chunk_tokens", p.chunk_tokens},
          {"chunk_vocab", p.chunk_vocab},
          {"milliseconds", row.milliseconds},
          {"peak_bytes", row.peak_bytes},
          {"added_bytes", row.added_bytes},
          {"error", row.error},
          {"gflops", row.gflops},
          {"of_peak", row.of_peak},
          {"status", row.status},
          {"reason", row.reason}};
}

void run(const Options& options, std::ostream& out) {
  const std::int64_t budget = bench_device(options.bench).budget;
  const std::vector<Case> cases = make_cases(options);
  const std::unique_ptr<Backend> opened =
      open_backend(parse_device(options.bench.device), options.bench.threads);
  Backend& backend = *opened;
  std::vector<Row> rows;
  std::vector<double> peaks;
  {
    Progress progress("case");
    for (const Case& c : cases) {
      progress.at(static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(cases.size()));
      rows.push_back(measure(c, options.bench, backend, budget));
      peaks.insert(peaks.end(), rows.back().peak_gflops.begin(), rows.back().peak_gflops.end());
    }
  }
  const double peak = peaks.empty() ? 0 : median(peaks);
  Table table({"impl", "dtype", "tokens", "hidden", "vocab", "chunk", "milliseconds", "peak", "added",
               "error", "rate", "status"});
  std::vector<BenchPoint> points;
  for (const Row& row : rows) {
    const LossProblem& p = row.c.problem;
    const auto cell = [&](const std::string& text) { return row.status == "ok" ? text : std::string("-"); };
    const auto size = [](std::int64_t count) { return count == 0 ? "-" : std::to_string(count); };
    const std::string chunk = fmt::format("{} x {}", size(p.chunk_tokens), size(p.chunk_vocab));
    points.push_back({fmt::format("{}{} {} hidden {} vocab {}", row.c.implementation,
                                  chunk == "- x -" ? "" : fmt::format(" chunk {}", chunk), name(p.dtype),
                                  p.hidden, p.vocab),
                      p.tokens, row.status == "ok" ? std::optional(row.milliseconds) : std::nullopt,
                      row.peak_bytes});
    table.add({row.c.implementation, std::string(name(p.dtype)), std::to_string(p.tokens),
               std::to_string(p.hidden), std::to_string(p.vocab), chunk,
               cell(fmt::format("{:.3f}", row.milliseconds)), bytes_cell(row.peak_bytes),
               bytes_cell(row.added_bytes), cell(fmt::format("{:.1e}", row.error)),
               cell(fmt::format("{:.0f} GFLOP/s {:.0f}%", row.gflops, 100 * row.of_peak)),
               row.reason.empty() ? row.status : fmt::format("{}: {}", row.status, row.reason)});
  }
  write_bench_page(options.bench, "Linear cross-entropy", "tokens", budget, std::move(points), table,
                   backend.description());
  if (options.bench.json) {
    nlohmann::ordered_json json = bench_header(backend.description(), peak);
    for (const Row& row : rows) json["rows"].push_back(to_json(row));
    json["budget_bytes"] = budget;
    return print_json(json, out);
  }
  out << as_asked(table, options.bench);
  if (options.bench.csv) return;
  const DeviceDescription& device = backend.description();
  fmt::print(
      out,
      "\none step: fused and fused-cuda run backward alone, which makes the loss on its way, the others "
      "forward and backward.\n"
      "Rates count three products, whatever is computed again; percentages are of {:.0f} GFLOP/s, {}\n",
      peak,
      device.kind == DeviceKind::cpu
          ? fmt::format("the median of the peaks measured between the steps, on {} threads with {}",
                        device.cores, name(device.simd))
          : "what this GPU reaches by the catalogue of devices (0: it is not in it)");
}

}  // namespace

void add_bench_loss(Command app, std::ostream& out) {
  auto options = std::make_shared<Options>();
  app.add_list("--tokens", options->tokens, 1, kMostTokens, "Tokens");
  app.add_list("--hidden", options->hidden, 1, kMostTokens, "Sizes of a hidden state");
  app.add_list("--vocab", options->vocab, 1, kMostTokens, "Words of the vocabulary");
  app.add_list("--dtype", options->dtype, "f32, bf16, f16");
  app.add_list("--impl", options->implementation,
               "fused, chunked-recompute, chunked, standard, reference; on a GPU fused-cuda");
  app.add_list("--chunk-tokens", options->chunk_tokens, 0, kMostTokens,
               "Tokens a chunk; 0: the implementation's own");
  app.add_list("--chunk-vocab", options->chunk_vocab, 0, kMostTokens, "Words a chunk; 0: all");
  add_bench_options(app, options->bench);
  app.footer(
      "Examples:\n  headroom bench loss --tokens 1024,4096 --vocab 32000,151936 --impl fused,standard\n"
      "  headroom bench loss --tokens 131072 --vocab 151936 --impl fused,standard --warmup 0 --steps 1\n"
      "  headroom bench loss --tokens 32768 --hidden 2560 --vocab 151936 --dtype bf16 --impl fused-cuda "
      "--device "
      "cuda:0");
  app.callback([options, &out] { run(*options, out); });
}

}  // namespace headroom
