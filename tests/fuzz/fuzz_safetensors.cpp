// Any bytes as a safetensors file: a header that covers the data once and in order, or an Error.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "headroom/core/error.h"
#include "headroom/model/safetensors.h"

static void accepts_or_refuses(std::span<const std::byte> file) {
  try {
    const headroom::SafetensorsHeader header = headroom::parse_safetensors(file, "fuzz");
    std::int64_t covered = 0;
    for (const headroom::SafetensorsEntry& entry : header.entries) {
      if (entry.begin != covered || entry.end < entry.begin) std::abort();
      if (entry.dtype && headroom::dense_bytes(*entry.dtype, entry.shape) != entry.end - entry.begin)
        std::abort();
      if (header.find(entry.name) != &entry) std::abort();
      covered = entry.end;
    }
    if (header.data_offset + covered != static_cast<std::int64_t>(file.size())) std::abort();
  } catch (const headroom::Error& error) {
    if (error.kind() != headroom::ErrorKind::input || std::strchr(error.what(), '\n') != nullptr)
      std::abort();
  }
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  accepts_or_refuses(std::as_bytes(std::span(data, size)));
  if (size < 1) return 0;
  // The same with a length that is right, so that the header itself is reached: the first byte says how much
  // data follows it.
  const std::uint64_t length = size - 1;
  std::vector<std::byte> file(sizeof(length) + length + data[0]);
  std::memcpy(file.data(), &length, sizeof(length));
  std::copy_n(reinterpret_cast<const std::byte*>(data) + 1, length, file.data() + sizeof(length));
  accepts_or_refuses(file);
  return 0;
}
