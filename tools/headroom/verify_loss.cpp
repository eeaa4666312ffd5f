// headroom verify loss: every implementation against the fp64 reference, on the shared list of cases; and how
// the loss of a large vocabulary would be taken, by the rule that scripts follow and inside a few budgets.
#include <fmt/ostream.h>

#include <algorithm>
#include <memory>

#include "cli.h"
#include "headroom/core/bytes.h"
#include "headroom/cpu.h"
#include "headroom/device.h"
#include "headroom/report.h"
#include "loss_cases.h"
#include "progress.h"
#include "verify.h"

namespace headroom {
namespace {

// Where it all started: a vocabulary of 151,936 words, bf16, at three lengths.
LossProblem started_with(std::int64_t tokens) {
  return {.tokens = tokens, .hidden = 2560, .vocab = 151'936, .dtype = DType::bf16};
}
constexpr std::int64_t kWholeBytes = 10 * kGiB;
constexpr std::int64_t kChunkTokens = 4096;

std::int64_t added_bytes(std::string_view implementation, const LossProblem& problem,
                         const DeviceDescription& device) {
  for (const LossImplementation& row : loss_implementations()) {
    if (row.name != implementation) continue;
    return row.saved_bytes(problem) + std::max(row.workspace_bytes(problem, device, Pass::forward),
                                               row.workspace_bytes(problem, device, Pass::backward));
  }
  fail(ErrorKind::input, "implementation '{}' is unknown", implementation);
}

struct Method {
  std::int64_t tokens;
  std::int64_t logits_bytes;
  std::string rule;            // who decides
  std::int64_t budget_bytes;   // 0: none is asked
  std::string implementation;  // and what is decided
  LossChunks chunks;
  std::int64_t added_bytes;
};

std::vector<Method> methods(const DeviceDescription& device) {
  std::vector<Method> result;
  for (const std::int64_t tokens : {4096, 40'000, 131'072}) {
    LossProblem problem = started_with(tokens);
    const auto add = [&](const std::string& rule, std::int64_t budget, std::string_view implementation,
                         const LossChunks& chunks) {
      problem.chunk_tokens = chunks.tokens;
      problem.chunk_vocab = chunks.vocab;
      result.push_back({tokens, logits_bytes(problem), rule, budget, std::string(implementation), chunks,
                        added_bytes(implementation, problem, device)});
    };
    const LossMethod by_size = loss_method_by_size(problem, kWholeBytes, kChunkTokens);
    add("by size", 0, by_size.implementation, {.tokens = by_size.chunk_tokens, .vocab = 0});
    for (const std::int64_t budget : {64 * kMiB, 256 * kMiB, kGiB, 10 * kGiB}) {
      add("in " + format_bytes(budget), budget, "fused", fit_loss_chunks(problem, device, budget));
    }
  }
  return result;
}

std::string or_all(std::int64_t count) {
  return count == 0 ? "all" : format_count(count);
}

void print(const std::vector<Method>& methods, std::ostream& out) {
  fmt::print(
      out,
      "\nvocabulary 151,936, hidden 2,560, bf16. By size: all at once while the logits take at most {}, "
      "else {} tokens at a\n"
      "time, as training scripts do; in a budget: the largest chunks with which fused adds no more\n\n",
      format_bytes(kWholeBytes), format_count(kChunkTokens));
  Table table({"tokens", "logits", "rule", "method", "tokens a chunk", "words a chunk", "added"});
  for (const Method& method : methods) {
    table.add({format_count(method.tokens), format_bytes(method.logits_bytes), method.rule,
               method.implementation, or_all(method.chunks.tokens), or_all(method.chunks.vocab),
               format_bytes(method.added_bytes)});
  }
  out << table.text();
}

nlohmann::ordered_json to_json(const std::vector<Method>& methods) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Method& method : methods) {
    rows.push_back({{"tokens", method.tokens},
                    {"logits_bytes", method.logits_bytes},
                    {"rule", method.budget_bytes == 0 ? "size" : "budget"},
                    {"budget_bytes", method.budget_bytes},
                    {"implementation", method.implementation},
                    {"chunk_tokens", method.chunks.tokens},
                    {"chunk_vocab", method.chunks.vocab},
                    {"added_bytes", method.added_bytes}});
  }
  return {{"methods", rows}};
}

int run(const VerifyOptions& options, std::ostream& out) {
  const ListedDevice listed = find_device(parse_device(options.device));
  const bool on_cpu = listed.device.kind == DeviceKind::cpu;
  const std::unique_ptr<Backend> backend = on_cpu ? nullptr : open_backend(listed.device);
  DeviceDescription description = listed.description;
  if (on_cpu && options.threads != 0) description.cores = options.threads;
  const std::vector<LossCase> cases = loss_cases();
  std::vector<std::string> names = names_to_verify(loss_implementations(), options.implementation);
  if (options.implementation.empty()) {
    // What runs on another kind of device is left out, unless it was asked for.
    std::erase_if(names, [&](const std::string& name) {
      return std::ranges::none_of(cases,
                                  [&](const LossCase& c) { return bool{serves(c, name, description)}; });
    });
  }
  Verification verification("loss", cases.size());
  {
    Progress progress("case");
    for (std::size_t i = 0; i < cases.size(); i += options.every) {
      progress.at(static_cast<std::int64_t>(i), static_cast<std::int64_t>(cases.size()));
      const PreparedLossCase prepared(cases[i]);
      for (const std::string& name : names) {
        if (const Support support = serves(cases[i], name, description)) {
          verification.ran(name, cases[i].group, cases[i].name,
                           prepared.judge(name, description, backend.get()).worst());
        } else {
          verification.refused(name, support.reason());
        }
      }
    }
  }
  const std::vector<Method> chosen = on_cpu ? methods(description) : std::vector<Method>();
  const int exit_code = verification.report(options, to_json(chosen), out);
  if (!options.json && on_cpu) print(chosen, out);
  return exit_code;
}

}  // namespace

void add_verify_loss(Command app, std::ostream& out, int& exit_code) {
  auto options = std::make_shared<VerifyOptions>();
  add_verify_options(app, *options, "fused, chunked-recompute, chunked, standard; on a GPU fused-cuda");
  app.footer(
      "Examples:\n  HEADROOM_SIMD=avx2 headroom verify loss --impl fused\n"
      "  headroom verify loss --device cuda:0");
  app.callback([options, &out, &exit_code] { exit_code = run(*options, out); });
}

}  // namespace headroom
