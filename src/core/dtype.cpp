#include "headroom/core/dtype.h"

#include <array>

#include "headroom/core/error.h"
#include "headroom/core/text.h"

namespace headroom {
namespace {

struct Row {
  std::string_view name;
  std::int64_t bytes;
};

// Indexed by DType.
constexpr std::array kRows = {Row{"f32", 4}, Row{"bf16", 2}, Row{"f16", 2},
                              Row{"f64", 8}, Row{"i32", 4},  Row{"u8", 1}};

}  // namespace

std::int64_t size_bytes(DType dtype) {
  return kRows[static_cast<std::size_t>(dtype)].bytes;
}

std::string_view name(DType dtype) {
  return kRows[static_cast<std::size_t>(dtype)].name;
}

DType parse_dtype(std::string_view text) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    if (name(dtype) == text) return dtype;
  }
  fail(ErrorKind::input, "dtype {} is unknown; use f32, bf16 or f16", quote(text));
}

}  // namespace headroom
