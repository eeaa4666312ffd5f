#include "ops/random_fill.h"

#include <algorithm>

#include "headroom/core/checked.h"
#include "headroom/core/elements.h"
#include "headroom/cpu/thread_pool.h"
#include "headroom/ops.h"
#include "ops/operation.h"
#include "ops/work.h"

namespace headroom {
namespace {

constexpr std::int64_t kChunk = 1 << 14;  // elements per work item: about 100 us

void random_fill_cpu(const RandomFill& call, TensorView, const Stream& stream) {
  const std::int64_t elements = call.view.elements();
  parallel_for(stream, divide_up(elements, kChunk), [&](std::int64_t chunk) {
    const std::int64_t end = std::min(elements, (chunk + 1) * kChunk);
    for (std::int64_t i = chunk * kChunk; i < end; ++i) {
      write_element(
          call.view, i,
          random_element(call.random, call.first + static_cast<std::uint64_t>(i), call.low, call.width));
    }
  });
}

constexpr OperationRow<RandomFill> kRows[] = {{"cpu", on_cpus, random_fill_cpu},
                                              {"cuda", on_cuda_gpus, random_fill_cuda}};

}  // namespace

void random_fill(Context& context, const TensorView& view, Random random, float low, float high,
                 std::int64_t first) {
  check(first >= 0, "random_fill begins at element {}, which has to be at least 0", first);
  check(view.is_dense(), "random_fill writes dense views, not {} with gaps", view.shape());
  const DType dtype = view.dtype();
  check(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
        "random_fill writes f32, bf16 or f16, not {}", name(dtype));
  check(low <= high, "random_fill from {} to {} is an empty range", low, high);
  run_operation<RandomFill>(
      context, kRows, {view, random, static_cast<std::uint64_t>(first), low, static_cast<double>(high) - low},
      moves("random fill", {view}));
}

}  // namespace headroom
