// headroom verify ring: attention over ranks against the fp64 reference, on the shared list of cases. The
// ranks are threads; under mpirun they are its processes, and cases of as many ranks run.
#include <algorithm>
#include <bit>
#include <memory>
#include <optional>

#include "cli.h"
#include "headroom/comm.h"
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

int run(const VerifyOptions& options, std::ostream& out) {
  std::optional<MpiRanks> mpi;
  if (MpiRanks::launched()) mpi.emplace();
  const Ranks ranks = mpi ? mpi->communicator().ranks() : Ranks{};
  std::vector<RingCase> cases = ring_cases();
  if (mpi) std::erase_if(cases, [&](const RingCase& c) { return c.ranks != ranks.count; });
  check(!cases.empty(), "no case is for {} ranks; use 1, 2, 3, 4, 5, 8 or 16", ranks.count);
  Verification verification("ring", cases.size());
  {
    Progress progress("ring: case");
    for (std::size_t i = 0; i < cases.size(); i += options.every) {
      const RingCase& c = cases[i];
      if (ranks.rank == 0) progress.at(static_cast<std::int64_t>(i), static_cast<std::int64_t>(cases.size()));
      const double worst =
          mpi ? worst_of_ranks(run_ring_case(c, mpi->communicator()).worst(), mpi->communicator())
              : run_ring_case(c).worst();
      verification.ran(name(c.way, c.group), c.attention.group, c.name(), worst);
    }
  }
  std::ostream nowhere(nullptr);
  return verification.report(options, {{"transport", mpi ? "mpi" : "threads"}},
                             ranks.rank == 0 ? out : nowhere);
}

}  // namespace

void add_verify_ring(Command app, std::ostream& out, int& exit_code) {
  auto options = std::make_shared<VerifyOptions>();
  app.add_whole("--every", options->every, 1, 1000, "Only every n-th case, for a quick look");
  app.add_flag("--json", options->json, "For machines; keys in docs/cli.md");
  app.footer(
      "Examples:\n  headroom verify ring\n  headroom verify ring --every 10 --json\n"
      "  mpirun -n 4 headroom verify ring");
  app.callback([options, &out, &exit_code] { exit_code = run(*options, out); });
}

}  // namespace headroom
