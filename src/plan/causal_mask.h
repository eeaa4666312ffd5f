// The mask of a step that is trained.
#pragma once

#include <string>

#include "headroom/attention/mask.h"
#include "headroom/core/error.h"

namespace headroom {

[[nodiscard]] inline Mask causal_mask(const std::string& attention) {
  const Mask mask = parse_mask(attention);
  check(mask.causal, "attention '{}' lets a token see what it is to predict; add causal", attention);
  return mask;
}

}  // namespace headroom
