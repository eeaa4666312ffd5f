// headroom verify ring: attention over ranks against the fp64 reference, on the shared list of cases. The
// ranks are threads, on the CPU or on GPUs. Under mpirun, and on GPUs under torchrun, they are its processes,
// and cases of as many ranks run.
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>

#include "cli.h"
#include "launched_ranks.h"
#include "progress.h"
#include "ring_cases.h"
#include "verify.h"

namespace headroom {
namespace {

// The largest over all ranks: each has judged its own part.
double worst_of_ranks(double worst, Communicator& communicator) {
  for (const std::uint64_t bits : communicator.all_values(std::bit_cast<std::uint64_t>(worst))) {
    worst = std::max(worst, std::bit_cast<double>(bits));
  }
  return worst;
}

struct Options {
  VerifyOptions verify;
  std::vector<std::string> devices = {"cpu"};
  std::vector<std::int64_t> ranks;  // none: all of the list
};

std::vector<RingCase> chosen_cases(const Options& options, const Ranks& launched) {
  std::vector<RingCase> cases = ring_cases();
  std::erase_if(cases, [&](const RingCase& c) {
    const bool wanted =
        options.ranks.empty() || std::ranges::find(options.ranks, c.ranks) != options.ranks.end();
    return !wanted || (launched.count > 1 && c.ranks != launched.count);
  });
  check(!cases.empty(), "no case is for so many ranks; use 1, 2, 3, 4, 5, 8 or 16");
  return cases;
}

int run(const Options& options, std::ostream& out) {
  LaunchedRanks launched(options.devices);
  const std::vector<Device>& devices = launched.devices();
  const MakeBackend backend_of = [&](int rank) { return open_backend(device_of_rank(devices, rank), 1); };
  Communicator* communicator = launched.communicator();
  const Ranks ranks = launched.ranks();
  const std::vector<RingCase> cases = chosen_cases(options, ranks);
  Verification verification("ring", cases.size());
  {
    Progress progress("ring: case");
    for (std::size_t i = 0; i < cases.size(); i += options.verify.every) {
      const RingCase& c = cases[i];
      if (ranks.rank == 0) progress.at(static_cast<std::int64_t>(i), static_cast<std::int64_t>(cases.size()));
      const double worst =
          communicator == nullptr
              ? run_ring_case(c, backend_of).worst()
              : worst_of_ranks(run_ring_case(c, *communicator, *open_backend(launched.device(), 1)).worst(),
                               *communicator);
      verification.ran(name(c.way, c.group), c.attention.group, c.name(), worst);
    }
  }
  std::ostream nowhere(nullptr);
  VerifyOptions reported = options.verify;
  reported.device = fmt::format("{}", fmt::join(options.devices, ","));
  launched.finish();
  return verification.report(reported, {{"transport", launched.transport()}},
                             ranks.rank == 0 ? out : nowhere);
}

}  // namespace

void add_verify_ring(Command app, std::ostream& out, int& exit_code) {
  auto options = std::make_shared<Options>();
  app.add_list("--device", options->devices,
               "Devices that the ranks take in turn: cpu, cuda:0, cuda:0,cuda:1");
  app.add_list("--ranks", options->ranks, 1, 1024, "Only cases of so many ranks (default: all)");
  app.add_whole("--every", options->verify.every, 1, 1000, "Only every n-th case, for a quick look");
  app.add_flag("--json", options->verify.json, "For machines; keys in docs/cli.md");
  app.footer(
      "Examples:\n  headroom verify ring\n  headroom verify ring --every 10 --json\n"
      "  headroom verify ring --device cuda:0 --ranks 1,4\n  mpirun -n 4 headroom verify ring\n"
      "  torchrun --no-python --nproc-per-node 2 headroom verify ring --device cuda:0,cuda:1");
  app.callback([options, &out, &exit_code] { exit_code = run(*options, out); });
}

}  // namespace headroom
