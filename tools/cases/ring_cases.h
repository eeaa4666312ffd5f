// The one list of cases of attention over ranks: the tests and `headroom verify ring` run it. A case is an
// attention case with a number of ranks, a partition and a way.
#pragma once

#include "attention_cases.h"
#include "headroom/comm.h"
#include "headroom/parallel.h"
#include "ring_run.h"

namespace headroom {

struct RingCase {
  AttentionCase attention;
  int ranks = 1;
  PartitionKind partition = PartitionKind::contiguous;
  AttentionWay way = AttentionWay::ring;
  int group = 0;  // ranks that divide heads, in the product

  [[nodiscard]] std::string name() const;
  // `whole` has the lists of the whole sequence in host memory.
  [[nodiscard]] ParallelSchedule schedule(const AttentionForward& whole) const;
};

[[nodiscard]] std::vector<RingCase> ring_cases();

// Forward and backward of a case, held to the same bounds as attention on one rank: over threads of this
// process, or as one of the ranks, which have to be as many as the case's. `pinned` is a row of attention.
[[nodiscard]] AttentionErrors run_ring_case(const RingCase& ring_case,
                                            const MakeBackend& backend_of = cpu_of_each_rank(),
                                            std::string_view pinned = {});
[[nodiscard]] AttentionErrors run_ring_case(const RingCase& ring_case, Communicator& communicator,
                                            Backend& backend, std::string_view pinned = {});

}  // namespace headroom
