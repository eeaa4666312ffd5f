// How much of a device's memory is free, and who holds the rest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headroom {

struct MemoryHolder {
  std::int64_t process = 0;
  std::string name;
  std::int64_t bytes = 0;
};

struct MemoryStatus {
  std::int64_t total_bytes = 0;
  std::int64_t free_bytes = 0;
  std::int64_t held_by_others_bytes = 0;  // everything that is neither free nor ours
  std::vector<MemoryHolder> holders;      // the largest of those others, as far as the system names them
};

// Of this machine. Free is the kernel's estimate, or what control groups leave, whichever is less.
[[nodiscard]] MemoryStatus host_memory();

// What this process holds that no file backs, as the system counts it: RssAnon and RssShmem.
[[nodiscard]] std::int64_t process_resident_bytes();

// What it holds of files, as the system counts it (RssFile): its own code, and files that it has mapped.
[[nodiscard]] std::int64_t process_mapped_bytes();

// "held by others 4.2 GiB; most: python3 [4242] 4 GiB"
[[nodiscard]] std::string describe_holders(const MemoryStatus& memory);

// Largest first, and only the few worth naming; names filled in from the process table.
void name_largest(std::vector<MemoryHolder>& holders);

// An error of kind memory, with the arithmetic and the names, unless so many bytes are free.
void check_free(const MemoryStatus& memory, std::int64_t bytes, std::string_view device);

// Host memory that a run takes besides its arena, at most: the program itself.
inline constexpr std::int64_t kOutsideArenaBytes = std::int64_t{64} << 20;

}  // namespace headroom
