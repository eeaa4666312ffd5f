// Heads of queries and keys: RMS normalisation and rotation in one pass. A group of 4, 8, 16 or 32 lanes of a
// warp has a token and goes through its heads, whose angles are the same; a lane has neighbours of the left
// half of a head, eight or four, and those that turn with them.
#include "ops/cuda/angles.h"
#include "ops/cuda/eights.h"
#include "ops/cuda/ops.h"
#include "ops/cuda/parts.h"

namespace headroom::cuda {
namespace {

constexpr int kHeadBlocks = 2;  // on an SM at once: 128 registers a thread
static_assert(kHeadBlocks <= kMostParts);
constexpr std::int64_t kBusyLanes = 384;  // of an SM; with fewer, groups divide a token's heads

// Heads with unit stride inside: [tokens, heads, 2 * half].
template <DType kType>
struct Heads {
  Stored<kType>* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;

  static Heads of(const TensorView& view) {
    return {static_cast<Stored<kType>*>(view.raw()), view.stride(0), view.stride(1)};
  }
  __device__ __forceinline__ Stored<kType>* at(std::int64_t token, int head) const {
    return data + token * token_stride + head * head_stride;
  }
};

// A lane's share of a head.
template <int kSide>
struct Wide {
  float left[kSide];
  float right[kSide];
};
// As it is stored.
template <DType kType, int kSide>
struct Halves {
  Pack<kType, kSide> left;
  Pack<kType, kSide> right;

  static __device__ __forceinline__ Halves load(const Stored<kType>* head, int half) {
    return {Pack<kType, kSide>::load(head), Pack<kType, kSide>::load(head + half)};
  }
  __device__ __forceinline__ void stay_narrow() {
    left.stay_narrow();
    right.stay_narrow();
  }
  __device__ __forceinline__ Wide<kSide> wide() const {
    Wide<kSide> values;
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      values.left[i] = left.wide(i);
      values.right[i] = right.wide(i);
    }
    return values;
  }
};

template <DType kType, int kSide>
__device__ __forceinline__ void store_halves(Stored<kType>* head, int half, const Wide<kSide>& values) {
  Pack<kType, kSide>::of(values.left).store(head);
  Pack<kType, kSide>::of(values.right).store(head + half);
}

// (a, b) <- (a cos - b sin, b cos + a sin)
template <int kSide>
__device__ __forceinline__ void rotate(Wide<kSide>& values, const Angle (&angles)[kSide]) {
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    const float a = values.left[i];
    const float b = values.right[i];
    values.left[i] = a * angles[i].cosine - b * angles[i].sine;
    values.right[i] = b * angles[i].cosine + a * angles[i].sine;
  }
}

template <int kLanes>
__device__ __forceinline__ float sum_lanes(float value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

template <DType kType, DType kWeight>
struct HeadsCall {
  Heads<kType> x;
  Heads<kType> y;           // forward's result; of backward: its gradient
  Heads<kType> gradient{};  // of x
  const Stored<kWeight>* weight = nullptr;
  float* rstd = nullptr;  // [tokens, heads]
  std::int64_t tokens = 0;
  int heads = 0;
  float part_of_head = 0;  // 1 / (2 * half)
  float epsilon = 0;
  bool add = false;  // to the gradient of x
  Rotation rotation{};
  float* parts = nullptr;   // [blocks, 2 * half], of the gradient of the weight
  std::int64_t blocks = 0;  // each has every so many-th of the tokens
  int groups = 1;           // that divide a token's heads
};

struct HeadPlace {
  std::int64_t token;
  int head;
  bool there;  // with elements for this lane
};

// load(place), and then body(place, what was loaded, angles), for all heads of a block's tokens: as often for
// every lane. kAhead heads are on their way while one is computed.
template <int kLanes, int kSide, int kAhead, class Call, class Load, class Body>
__device__ __forceinline__ void for_heads(const Call& call, const Load& load, const Body& body) {
  constexpr int kGroups = kThreads / kLanes;
  const int column = static_cast<int>(threadIdx.x) % kLanes * kSide;
  const int turns = (call.heads + call.groups - 1) / call.groups;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kGroups;
       first < call.tokens * call.groups; first += call.blocks * kGroups) {
    const std::int64_t group = first + threadIdx.x / kLanes;
    const bool there = group < call.tokens * call.groups && column < call.rotation.frequencies.half;
    const std::int64_t token = there ? quotient(group, call.groups) : 0;
    const auto place_of = [&](int turn) {
      const int head = static_cast<int>(group - token * call.groups) + turn * call.groups;
      return HeadPlace{token, head, there && head < call.heads};
    };
    decltype(load(HeadPlace{})) ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead[i] = load(place_of(i));
    __syncwarp();  // loads are under way before the angles are begun
    Angle angles[kSide];
#pragma unroll
    for (int i = 0; i < kSide; ++i) angles[i] = turn_of(call.rotation, token, column + i);
    for (int turn = 0; turn < turns; turn += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (turn + i >= turns) break;
        const auto loaded = ahead[i];
        ahead[i] = load(place_of(turn + i + kAhead));
        body(place_of(turn + i), loaded, angles);
      }
    }
  }
}

// y <- rope(norm(x)), or without the norm
template <int kLanes, int kSide, bool kNorm, DType kType, DType kWeight>
__global__ void __launch_bounds__(kThreads, kHeadBlocks) heads_kernel(HeadsCall<kType, kWeight> call) {
  constexpr int kAhead = 2;
  using Loaded = Halves<kType, kSide>;
  const int half = call.rotation.frequencies.half;
  const int column = static_cast<int>(threadIdx.x) % kLanes * kSide;
  Wide<kSide> weight{};
  if (kNorm && column < half) weight = Halves<kWeight, kSide>::load(call.weight + column, half).wide();
  const auto load = [&](const HeadPlace& place) {
    return place.there ? Loaded::load(call.x.at(place.token, place.head) + column, half) : Loaded{};
  };
  const auto body = [&](const HeadPlace& place, const Loaded& x, const Angle(&angles)[kSide]) {
    Wide<kSide> values = x.wide();
    if constexpr (kNorm) {
      float squares = 0;
#pragma unroll
      for (int j = 0; j < kSide; ++j) {
        squares += values.left[j] * values.left[j];
        squares += values.right[j] * values.right[j];
      }
      const float rstd = 1.0F / sqrtf(sum_lanes<kLanes>(squares) * call.part_of_head + call.epsilon);
#pragma unroll
      for (int j = 0; j < kSide; ++j) {
        values.left[j] = values.left[j] * rstd * weight.left[j];
        values.right[j] = values.right[j] * rstd * weight.right[j];
      }
      if (place.there && column == 0) call.rstd[place.token * call.heads + place.head] = rstd;
    }
    if (!place.there) return;
    rotate(values, angles);
    store_halves<kType>(call.y.at(place.token, place.head) + column, half, values);
  };
  for_heads<kLanes, kSide, kAhead>(call, load, body);
}

// The gradient of x, from that of y turned back; parts <- each block's sum of what is the weight's.
template <int kLanes, int kSide, DType kType, DType kWeight>
__global__ void __launch_bounds__(kThreads, kHeadBlocks)
    heads_backward_kernel(HeadsCall<kType, kWeight> call) {
  constexpr int kGroups = kThreads / kLanes;
  constexpr int kAhead = 1;
  const int half = call.rotation.frequencies.half;
  const int column = static_cast<int>(threadIdx.x) % kLanes * kSide;
  Halves<kWeight, kSide> weight{};
  if (column < half) weight = Halves<kWeight, kSide>::load(call.weight + column, half);
  struct Loaded {
    Halves<kType, kSide> x;
    Halves<kType, kSide> gradient;
    float rstd;
  };
  const auto load = [&](const HeadPlace& place) {
    Loaded loaded{};
    if (place.there) {
      loaded.x = Halves<kType, kSide>::load(call.x.at(place.token, place.head) + column, half);
      loaded.gradient = Halves<kType, kSide>::load(call.y.at(place.token, place.head) + column, half);
      loaded.rstd = call.rstd[place.token * call.heads + place.head];
    }
    return loaded;
  };
  Wide<kSide> sums{};
  const auto body = [&](const HeadPlace& place, const Loaded& loaded, const Angle(&angles)[kSide]) {
    Wide<kSide> h = loaded.x.wide();
    Wide<kSide> gradient = loaded.gradient.wide();
    rotate(gradient, angles);
    weight.stay_narrow();
    float dot = 0;
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
      h.left[j] *= loaded.rstd;
      h.right[j] *= loaded.rstd;
      dot += gradient.left[j] * weight.left.wide(j) * h.left[j];
      dot += gradient.right[j] * weight.right.wide(j) * h.right[j];
    }
    const float mean = sum_lanes<kLanes>(dot) * call.part_of_head;
    if (!place.there) return;
    Stored<kType>* to = call.gradient.at(place.token, place.head) + column;
    Halves<kType, kSide> before{};
    if (call.add) before = Halves<kType, kSide>::load(to, half);
    weight.stay_narrow();
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
      sums.left[j] += gradient.left[j] * h.left[j];
      sums.right[j] += gradient.right[j] * h.right[j];
      gradient.left[j] =
          before.left.wide(j) + loaded.rstd * (gradient.left[j] * weight.left.wide(j) - h.left[j] * mean);
      gradient.right[j] =
          before.right.wide(j) + loaded.rstd * (gradient.right[j] * weight.right.wide(j) - h.right[j] * mean);
    }
    store_halves<kType>(to, half, gradient);
  };
  for_heads<kLanes, kSide, kAhead>(call, load, body);
  auto* shared = reinterpret_cast<float*>(shared_memory);  // [groups, 2 * half]
  if (column < half) {
    float* const mine = shared + threadIdx.x / kLanes * 2 * half + column;
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
      mine[j] = sums.left[j];
      mine[half + j] = sums.right[j];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * half; i += kThreads) {
    float sum = 0;
    for (int g = 0; g < kGroups; ++g) sum += shared[g * 2 * half + i];
    call.parts[static_cast<std::int64_t>(blockIdx.x) * 2 * half + i] = sum;
  }
}

// Whether lanes can load `side` neighbours at a time.
bool in_sides(int side, const RopeFrequencies& frequencies, std::initializer_list<TensorView> views) {
  const auto aligned = [&](const TensorView& view) {
    const std::int64_t bytes = std::min<std::int64_t>(16, side * size_bytes(view.dtype()));
    bool whole = reinterpret_cast<std::uintptr_t>(view.raw()) % static_cast<std::uintptr_t>(bytes) == 0;
    for (int i = 0; i + 1 < view.rank(); ++i) {
      whole = whole && view.stride(i) * size_bytes(view.dtype()) % bytes == 0;
    }
    return whole;
  };
  return frequencies.half % side == 0 && std::ranges::all_of(views, aligned);
}
constexpr int kShortSide = 4;

// body.operator()<lanes, side>() for heads of these views, which lie in short sides at least
template <class Body>
void with_lanes(const RopeFrequencies& frequencies, std::initializer_list<TensorView> views,
                const Body& body) {
  if (!in_sides(kEight, frequencies, views)) return body.template operator()<kWarp, kShortSide>();
  if (frequencies.half <= 4 * kEight) return body.template operator()<4, kEight>();
  if (frequencies.half <= 8 * kEight) return body.template operator()<8, kEight>();
  body.template operator()<16, kEight>();
}

template <DType kType, DType kWeight>
HeadsCall<kType, kWeight> call_of(const TensorView& x, const TensorView& y, const RopeCall& rope, Pass pass) {
  return {.x = Heads<kType>::of(x),
          .y = Heads<kType>::of(y),
          .tokens = x.extent(0),
          .heads = static_cast<int>(x.extent(1)),
          .part_of_head = 0.5F / static_cast<float>(rope.frequencies.half),
          .rotation = {.positions = rope.positions.data<std::int32_t>(),
                       .frequencies = rope.frequencies,
                       .backward = pass == Pass::backward}};
}

// The groups of a token's heads and the blocks of all tokens.
template <class Call>
void divide(Call& call, int lanes, const Stream& stream) {
  while (call.tokens * call.groups * lanes < stream.device->cores * kBusyLanes && call.groups < call.heads) {
    call.groups *= 2;
  }
  call.blocks = divide_up(call.tokens * call.groups * lanes, kThreads);
}

}  // namespace

bool rope_in_halves(const TensorView& x, const RopeCall& rope, Pass pass, const Stream& stream) {
  if (!in_sides(kShortSide, rope.frequencies, {x})) return false;
  with_dtype(x.dtype(), [&]<DType kType>() {
    auto call = call_of<kType, kType>(x, x, rope, pass);
    with_lanes(rope.frequencies, {x}, [&]<int kLanes, int kSide>() {
      divide(call, kLanes, stream);
      launch("rope_heads_kernel", heads_kernel<kLanes, kSide, false, kType, kType>, call.blocks, kThreads, 0,
             stream, call);
    });
  });
  return true;
}

void rms_norm_rope_forward(const RmsNormForward& views, float epsilon, const RopeCall& rope,
                           const Stream& stream) {
  if (!in_sides(kShortSide, rope.frequencies, {views.x, views.y, views.weight})) {
    rms_norm_forward(views, epsilon, stream);
    return cuda::rope(views.y, rope.positions, rope.frequencies, Pass::forward, stream);
  }
  with_dtypes(views.x.dtype(), views.weight.dtype(), [&]<DType kType, DType kWeight>() {
    auto call = call_of<kType, kWeight>(views.x, views.y, rope, Pass::forward);
    call.weight = static_cast<const Stored<kWeight>*>(views.weight.raw());
    call.rstd = views.rstd.data<float>();
    call.epsilon = epsilon;
    with_lanes(rope.frequencies, {views.x, views.y, views.weight}, [&]<int kLanes, int kSide>() {
      divide(call, kLanes, stream);
      launch("norm_rope_kernel", heads_kernel<kLanes, kSide, true, kType, kWeight>, call.blocks, kThreads, 0,
             stream, call);
    });
  });
}

void rms_norm_rope_backward(const RmsNormBackward& views, Store x_gradient, const RopeCall& rope,
                            const TensorView& workspace, const Stream& stream) {
  if (views.x.elements() == 0) return;
  const std::initializer_list<TensorView> loaded = {views.x, views.y_gradient, views.x_gradient,
                                                    views.weight};
  if (!in_sides(kShortSide, rope.frequencies, loaded)) {
    cuda::rope(views.y_gradient, rope.positions, rope.frequencies, Pass::backward, stream);
    return rms_norm_backward(views, x_gradient, workspace, stream);
  }
  with_dtypes(views.x.dtype(), views.weight.dtype(), [&]<DType kType, DType kWeight>() {
    auto call = call_of<kType, kWeight>(views.x, views.y_gradient, rope, Pass::backward);
    call.gradient = Heads<kType>::of(views.x_gradient);
    call.weight = static_cast<const Stored<kWeight>*>(views.weight.raw());
    call.rstd = views.rstd.data<float>();
    call.add = x_gradient == Store::add;
    call.parts = static_cast<float*>(workspace.raw());
    with_lanes(rope.frequencies, loaded, [&]<int kLanes, int kSide>() {
      divide(call, kLanes, stream);
      call.blocks = std::min(call.blocks, std::int64_t{kHeadBlocks} * stream.device->cores);
      launch("norm_rope_backward_kernel", heads_backward_kernel<kLanes, kSide, kType, kWeight>, call.blocks,
             kThreads,
             kThreads / kLanes * 2 * rope.frequencies.half * static_cast<std::int64_t>(sizeof(float)), stream,
             call);
    });
    add_parts(call.parts, call.blocks, views.weight_gradient, stream);
  });
}

}  // namespace headroom::cuda
