// How an operation leaves its result.
#pragma once

#include <cstdint>

namespace headroom {

enum class Store : std::uint8_t {
  overwrite,
  add,  // to what is there
};

}  // namespace headroom
