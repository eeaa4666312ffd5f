// Threads do not survive fork(): whoever has some compares this number with the one they were started under.
#pragma once

#include <cstdint>

namespace headroom {

[[nodiscard]] std::uint32_t current_fork();

}  // namespace headroom
