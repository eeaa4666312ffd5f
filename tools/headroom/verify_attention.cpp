// headroom verify attention: every implementation against the fp64 reference, on the shared list of cases.
#include <fmt/ostream.h>

#include <algorithm>
#include <memory>

#include "attention_cases.h"
#include "cli.h"
#include "headroom/cpu.h"
#include "headroom/device.h"
#include "progress.h"
#include "verify.h"

namespace headroom {
namespace {

// How much of the list an implementation serves; 16-bit cases are bf16 and f16.
struct Share {
  std::string implementation;
  int cases = 0;
  int served = 0;
  int half_cases = 0;
  int half_served = 0;

  void add(const AttentionCase& c, bool serves) {
    const bool half = c.problem.dtype != DType::f32;
    ++cases;
    served += serves;
    half_cases += half;
    half_served += half && serves;
  }
};

int run(const VerifyOptions& options, std::ostream& out) {
  const ListedDevice listed = find_device(parse_device(options.device));
  const bool on_cpu = listed.device.kind == DeviceKind::cpu;
  const std::unique_ptr<Backend> backend = on_cpu ? nullptr : open_backend(listed.device);
  const std::vector<AttentionCase> cases = attention_cases();
  const int threads = options.threads == 0 ? usable_cores() : options.threads;
  CaseDevice device{.description = listed.description, .backend = backend.get()};
  if (on_cpu) device.description.cores = threads;
  Verification verification("attention", cases.size());
  std::vector<Share> shares;
  for (const std::string& name : names_to_verify(attention_implementations(), options.implementation)) {
    // What runs on another kind of device is left out, unless it was asked for.
    const bool any = std::ranges::any_of(
        cases, [&](const AttentionCase& c) { return bool{serves(c, name, device.description)}; });
    if (!any && options.implementation.empty()) continue;
    Share share{.implementation = name};
    Progress progress(fmt::format("{}: case", name));
    for (std::size_t i = 0; i < cases.size(); i += options.every) {
      progress.at(static_cast<std::int64_t>(i), static_cast<std::int64_t>(cases.size()));
      const Support support = serves(cases[i], name, device.description);
      share.add(cases[i], bool{support});
      if (support) {
        verification.ran(name, cases[i].group, cases[i].name,
                         run_attention_case(cases[i], find_attention(name), threads, device).worst());
      } else {
        verification.refused(name, support.reason());
      }
    }
    shares.push_back(share);
  }
  nlohmann::ordered_json served = nlohmann::ordered_json::array();
  for (const Share& share : shares) {
    served.push_back({{"implementation", share.implementation},
                      {"cases", share.cases},
                      {"served", share.served},
                      {"half_cases", share.half_cases},
                      {"half_served", share.half_served}});
    if (options.json) continue;
    fmt::print(out, "{} serves {} of {} cases, {} of the {} in 16 bits\n", share.implementation, share.served,
               share.cases, share.half_served, share.half_cases);
  }
  return verification.report(options, {{"served", served}}, out);
}

}  // namespace

void add_verify_attention(Command app, std::ostream& out, int& exit_code) {
  auto options = std::make_shared<VerifyOptions>();
  add_verify_options(app, *options,
                     "tiled, naive, naive-recompute; on a GPU sm90, bf16x3, tf32x3, portable, tf32");
  app.footer(
      "Examples:\n  HEADROOM_SIMD=avx2 headroom verify attention --impl tiled\n"
      "  headroom verify attention --device cuda:0");
  app.callback([options, &out, &exit_code] { exit_code = run(*options, out); });
}

}  // namespace headroom
