#include "headroom/core/finite.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/temporary_folder.h"
#include "headroom/core/elements.h"

namespace headroom {
namespace {

TEST(AllFinite, FindsEveryElementThatIsNot) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    constexpr std::int64_t kCount = 9001;  // past two blocks, and no multiple of a vector
    std::vector<double> memory(kCount);
    const TensorView view(memory.data(), dtype, {kCount});
    for (std::int64_t i = 0; i < kCount; ++i) write_element(view, i, i % 2 == 0 ? 60'000.0 : -1e-7);
    EXPECT_TRUE(all_finite(view)) << name(dtype);
    for (const std::int64_t at : {0, 1, 4095, 4096, 9000}) {
      for (const double value :
           {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
            std::numeric_limits<double>::quiet_NaN()}) {
        const double before = read_element(view, at);
        write_element(view, at, value);
        EXPECT_FALSE(all_finite(view)) << name(dtype) << " " << value << " at " << at;
        write_element(view, at, before);
      }
    }
    EXPECT_TRUE(all_finite(view.slice(0, 7, 0)));
  }
}

TEST(AllFinite, RefusesWhatItCannotSearch) {
  std::vector<float> memory(6);
  const TensorView matrix(memory.data(), DType::f32, {2, 3});
  EXPECT_NE(error_of([&] { static_cast<void>(all_finite(matrix.slice(1, 0, 2))); }).find("strided"),
            std::string::npos);
  EXPECT_THROW(static_cast<void>(all_finite(TensorView(memory.data(), DType::i32, {6}))), Error);
}

}  // namespace
}  // namespace headroom
