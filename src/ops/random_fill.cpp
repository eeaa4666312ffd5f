#include "ops/random_fill.h"

#include <algorithm>

#include "headroom/core/checked.h"
#include "headroom/cpu/thread_pool.h"
#include "headroom/ops.h"

namespace headroom {
namespace {

constexpr std::int64_t kChunk = 1 << 14;  // elements per work item: about 100 us

void random_fill_cpu(float* data, std::int64_t elements, Random random, double low, double width,
                     const Stream& stream) {
  parallel_for(stream, divide_up(elements, kChunk), [&](std::int64_t chunk) {
    const std::int64_t end = std::min(elements, (chunk + 1) * kChunk);
    for (std::int64_t i = chunk * kChunk; i < end; ++i) {
      data[i] = random_element(random, static_cast<std::uint64_t>(i), low, width);
    }
  });
}

}  // namespace

void random_fill(Context& context, const TensorView& view, Random random, float low, float high) {
  check(view.is_dense(), "random_fill writes dense views, not {} with gaps", view.shape());
  check(view.dtype() == DType::f32, "random_fill writes f32, not {}", name(view.dtype()));
  check(low <= high, "random_fill from {} to {} is an empty range", low, high);
  const double width = static_cast<double>(high) - low;
  context.run({.kernel = "random fill", .bytes = static_cast<double>(view.bytes())},
              [&](const Stream& stream) {
#if defined(HEADROOM_WITH_CUDA)
                if (stream.device->kind == DeviceKind::cuda) {
                  random_fill_cuda(view.data<float>(), view.elements(), random, low, width, stream);
                  return;
                }
#endif
                random_fill_cpu(view.data<float>(), view.elements(), random, low, width, stream);
              });
}

}  // namespace headroom
