// Sizes, devices and dtypes as text: accepted or refused with an Error, never anything else.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "headroom/core.h"

template <class Parse>
static void accepts_or_refuses(Parse parse) {
  try {
    parse();
  } catch (const headroom::Error& error) {
    if (error.kind() != headroom::ErrorKind::input) std::abort();
  }
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  accepts_or_refuses([&] {
    if (headroom::parse_bytes(text) < 0) std::abort();
  });
  accepts_or_refuses([&] {
    if (headroom::parse_budget(text) <= 0) std::abort();
  });
  accepts_or_refuses([&] {
    const headroom::Device device = headroom::parse_device(text);
    if (text != "cuda" && !text.starts_with("cuda:0") && headroom::to_string(device) != text) std::abort();
  });
  accepts_or_refuses([&] {
    if (headroom::name(headroom::parse_dtype(text)) != text) std::abort();
  });
  return 0;
}
