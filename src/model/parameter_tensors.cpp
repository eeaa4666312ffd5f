// What the table of parameters does with tensors; the table itself needs no memory to work on.
#include <cstring>

#include "headroom/memory/staging.h"
#include "headroom/model/parameters.h"

namespace headroom {

TensorPart ParameterTable::part(const Tensor& flat, const Parameter& parameter) const {
  check_flat(flat);
  return {flat, parameter.offset, parameter.shape.elements()};
}

void ParameterTable::clear_padding(const Tensor& flat, Staging& staging) const {
  check_flat(flat);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const std::int64_t begin = entries_[i].offset + entries_[i].shape.elements();
    const std::int64_t end = i + 1 < entries_.size() ? entries_[i + 1].offset : elements_;
    staging.upload({flat, begin, end - begin}, [](std::span<std::byte> piece, std::int64_t) {
      std::memset(piece.data(), 0, piece.size());
    });
  }
}

}  // namespace headroom
