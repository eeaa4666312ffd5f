#include "headroom/memory/communicator.h"

#include "headroom/core/error.h"

namespace headroom {

void validate(const Ranks& ranks) {
  check(ranks.count >= 1 && ranks.rank >= 0 && ranks.rank < ranks.count, "there is no rank {} of {}",
        ranks.rank, ranks.count);
}

}  // namespace headroom
