#include "headroom/core/memory_status.h"

#include <algorithm>
#include <fstream>
#include <functional>

#include "headroom/core/bytes.h"
#include "headroom/core/error.h"

namespace headroom {

std::string describe_holders(const MemoryStatus& memory) {
  std::string text = fmt::format("held by others {}", format_bytes(memory.held_by_others_bytes));
  for (std::size_t i = 0; i < memory.holders.size(); ++i) {
    const MemoryHolder& holder = memory.holders[i];
    text += fmt::format("{}{} [{}] {}", i == 0 ? "; most: " : ", ", holder.name, holder.process,
                        format_bytes(holder.bytes));
  }
  return text;
}

void name_largest(std::vector<MemoryHolder>& holders) {
  constexpr std::size_t kNamed = 3;
  std::ranges::sort(holders, std::greater{}, &MemoryHolder::bytes);
  if (holders.size() > kNamed) holders.resize(kNamed);
  for (MemoryHolder& holder : holders) {
    std::ifstream file(fmt::format("/proc/{}/comm", holder.process));
    if (!std::getline(file, holder.name)) holder.name = "process";  // of another container, or gone
  }
}

void check_free(const MemoryStatus& memory, std::int64_t bytes, std::string_view device) {
  if (bytes <= memory.free_bytes) return;
  fail(ErrorKind::memory, "{} ({} bytes) are needed and {} of {} are free on {}; {}", format_bytes(bytes),
       format_count(bytes), format_bytes(memory.free_bytes), format_bytes(memory.total_bytes), device,
       describe_holders(memory));
}

std::int64_t default_budget(const MemoryStatus& memory) {
  return std::max<std::int64_t>(memory.free_bytes - kOutsideArenaBytes, 0);
}

}  // namespace headroom
