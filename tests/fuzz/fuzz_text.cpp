// Numbers, lists, sizes, devices, dtypes and masks as text: accepted or refused with an Error, never anything
// else.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "headroom/attention.h"
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
    if (text != "cuda" && headroom::to_string(device) != text) std::abort();
  });
  accepts_or_refuses([&] {
    if (headroom::name(headroom::parse_dtype(text)) != text) std::abort();
  });
  accepts_or_refuses([&] {
    if (std::to_string(headroom::parse_whole("n", text, 0)) != text) std::abort();
  });
  accepts_or_refuses([&] {
    if (std::to_string(headroom::parse_seed("n", text)) != text) std::abort();
  });
  accepts_or_refuses([&] {
    if (!std::isfinite(headroom::parse_number("x", text, {}))) std::abort();
  });
  accepts_or_refuses([&] {
    for (const std::string_view part : headroom::parse_list("list", text)) {
      if (part.empty()) std::abort();
    }
  });
  accepts_or_refuses([&] { static_cast<void>(headroom::parse_mask(text)); });
  const std::string shown = headroom::printable(text);
  if (headroom::printable(shown) != shown || shown.find('\n') != std::string::npos) std::abort();
  if (headroom::quote(text).size() > 4 * 60 + 5) std::abort();
  return 0;
}
