// What operations check of their arguments before they run, in rehearsal too. A message names the operation,
// the argument, what was given and what would be accepted.
#pragma once

#include <string_view>

#include "headroom/core/error.h"
#include "headroom/core/tensor_view.h"

namespace headroom {

// The arguments of one operation.
class Arguments {
 public:
  explicit Arguments(std::string_view operation) : operation_(operation) {}

  void dtype(const TensorView& view, DType wanted, std::string_view what) const {
    check(view.dtype() == wanted, "{}: {} holds {}, not {}", operation_, what, name(view.dtype()),
          name(wanted));
  }
  void floating(const TensorView& view, std::string_view what) const {
    check(is_floating(view.dtype()), "{}: {} holds {}, not f32, bf16 or f16", operation_, what,
          name(view.dtype()));
  }
  void rank(const TensorView& view, int least, int most, std::string_view what) const {
    check(view.rank() >= least && view.rank() <= most, "{}: {} has shape {}; its rank is {} to {}",
          operation_, what, view.shape(), least, most);
  }
  void shape(const TensorView& view, const Shape& wanted, std::string_view what) const {
    check(view.shape() == wanted, "{}: {} has shape {}, not {}", operation_, what, view.shape(), wanted);
  }
  void dense(const TensorView& view, std::string_view what) const {
    check(view.is_dense(), "{}: {} of shape {} has gaps between its elements; it has to be dense", operation_,
          what, view.shape());
  }
  // The elements of a row side by side; rows wherever.
  void rows(const TensorView& view, std::string_view what) const {
    const int last = view.rank() - 1;
    check(view.extent(last) <= 1 || view.stride(last) == 1, "{}: {} has stride {} inside a row, not 1",
          operation_, what, view.stride(last));
  }
  // Rows that are written: none inside another.
  void written_rows(const TensorView& view, std::string_view what) const {
    rows(view, what);
    const std::int64_t width = view.extent(view.rank() - 1);
    for (int i = 0; i < view.rank() - 1; ++i) {
      check(view.extent(i) <= 1 || view.stride(i) >= width,
            "{}: {} is written, and its rows of {} elements are {} elements apart", operation_, what, width,
            view.stride(i));
    }
  }
  // One dense dimension of one dtype: statistics, tokens, single values.
  void vector(const TensorView& view, DType wanted, const Shape& extents, std::string_view what) const {
    dtype(view, wanted, what);
    shape(view, extents, what);
    dense(view, what);
  }

 private:
  static bool is_floating(DType dtype) {
    return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
  }

  std::string_view operation_;
};

}  // namespace headroom
