#include "headroom/core/finite.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "headroom/core/error.h"

namespace headroom {
namespace {

// An element is not finite where all bits of its exponent are set. No branch inside a block, so that the
// compiler makes vectors of it.
template <class Bits>
bool exponents_below(std::span<const std::byte> bytes, Bits exponent) {
  constexpr std::size_t kBlock = 4096;
  const std::size_t count = bytes.size() / sizeof(Bits);
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, count);
    Bits found = 0;
    for (std::size_t i = begin; i < end; ++i) {
      Bits element;
      std::memcpy(&element, bytes.data() + i * sizeof(Bits), sizeof(Bits));
      found |= static_cast<Bits>((element & exponent) == exponent ? 1 : 0);
    }
    if (found != 0) return false;
  }
  return true;
}

}  // namespace

bool all_finite(std::span<const std::byte> bytes, DType dtype) {
  switch (dtype) {
    case DType::f32: return exponents_below<std::uint32_t>(bytes, 0x7f80'0000);
    case DType::bf16: return exponents_below<std::uint16_t>(bytes, 0x7f80);
    case DType::f16: return exponents_below<std::uint16_t>(bytes, 0x7c00);
    case DType::f64: return exponents_below<std::uint64_t>(bytes, 0x7ff0'0000'0000'0000);
    default: fail(ErrorKind::input, "{} is no floating-point type", name(dtype));
  }
}

bool all_finite(const TensorView& view) {
  check(view.is_dense(), "a view of shape {} is strided; only a dense one can be searched for infinities",
        view.shape());
  return all_finite(
      std::span(static_cast<const std::byte*>(view.raw()), static_cast<std::size_t>(view.bytes())),
      view.dtype());
}

}  // namespace headroom
