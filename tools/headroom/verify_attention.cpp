// headroom verify attention: every implementation against the fp64 reference, on the shared list of cases.
#include "attention_cases.h"
#include "cli.h"
#include "headroom/cpu.h"
#include "headroom/device.h"
#include "progress.h"
#include "verify.h"

namespace headroom {
namespace {

int run(const VerifyOptions& options, std::ostream& out) {
  const Device device = parse_device(options.device);
  static_cast<void>(find_device(device));
  check(device.kind == DeviceKind::cpu, "device '{}': attention has kernels for cpu", options.device);
  const std::vector<AttentionCase> cases = attention_cases();
  const int threads = options.threads == 0 ? usable_cores() : options.threads;
  Verification verification("attention", cases.size());
  for (const std::string& name : names_to_verify(attention_implementations(), options.implementation)) {
    Progress progress(fmt::format("{}: case", name));
    for (std::size_t i = 0; i < cases.size(); i += options.every) {
      progress.at(static_cast<std::int64_t>(i), static_cast<std::int64_t>(cases.size()));
      if (const Support support = serves(cases[i], name)) {
        verification.ran(name, cases[i].group, cases[i].name,
                         run_attention_case(cases[i], name, threads).worst());
      } else {
        verification.refused(name, support.reason());
      }
    }
  }
  return verification.report(options, nlohmann::ordered_json::object(), out);
}

}  // namespace

void add_verify_attention(CLI::App& app, std::ostream& out, int& exit_code) {
  auto options = std::make_shared<VerifyOptions>();
  add_verify_options(app, *options, "tiled, naive, naive-recompute");
  app.footer("Example:\n  HEADROOM_SIMD=avx2 headroom verify attention --impl tiled");
  app.callback([options, &out, &exit_code] { exit_code = run(*options, out); });
}

}  // namespace headroom
