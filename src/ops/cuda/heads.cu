// Heads of queries and keys: RMS normalisation and rotation in one pass. 8, 16 or 32 lanes of a warp share a
// head; a lane holds four neighbours of its left half and the four that turn with them.
#include "ops/cuda/angles.h"
#include "ops/cuda/eights.h"
#include "ops/cuda/ops.h"
#include "ops/cuda/parts.h"

namespace headroom::cuda {
namespace {

constexpr int kHeadTokens = 16;  // whose angles a block makes at a time
constexpr int kHeadBlocks = 3;   // of backward, on an SM at once
constexpr int kFour = 4;
static_assert(kHeadBlocks <= kMostParts);

template <DType kType>
using StoredFour = Pack<kType, kFour>;

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

// A lane's share of a head, as it is stored.
template <DType kType>
struct Halves {
  StoredFour<kType> left;
  StoredFour<kType> right;

  __device__ __forceinline__ Eight wide() const {
    Eight values;
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      values.at[i] = left.wide(i);
      values.at[kFour + i] = right.wide(i);
    }
    return values;
  }
};
template <DType kType>
__device__ __forceinline__ Halves<kType> load_halves(const Stored<kType>* head, int half) {
  return {StoredFour<kType>::load(head), StoredFour<kType>::load(head + half)};
}

template <DType kType>
__device__ __forceinline__ void store_halves(Stored<kType>* head, int half, const Eight& values) {
  StoredFour<kType>::of(values.at).store(head);
  StoredFour<kType>::of(values.at + kFour).store(head + half);
}

// (a, b) <- (a cos - b sin, b cos + a sin)
__device__ __forceinline__ void rotate(Eight& values, const Angle* angles) {
#pragma unroll
  for (int i = 0; i < kFour; ++i) {
    const float a = values.at[i];
    const float b = values.at[kFour + i];
    values.at[i] = a * angles[i].cosine - b * angles[i].sine;
    values.at[kFour + i] = b * angles[i].cosine + a * angles[i].sine;
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
  float epsilon = 0;
  bool add = false;  // to the gradient of x
  Rotation rotation{};
  float* parts = nullptr;   // [blocks, 2 * half], of the gradient of the weight
  std::int64_t blocks = 0;  // that divide the tokens
};

// One of the heads of a block's tokens; an absent one is the first again.
struct HeadPlace {
  std::int64_t token;
  int head;
  std::int64_t row;  // among all heads
  int turn;          // its token, among the block's
  bool there;        // with elements for this lane
};

// load(place), and then body(place, what was loaded, angles), for the heads of up to kHeadTokens tokens from
// `first` on: as often for every lane. The next head is on its way while one is computed.
template <int kLanes, class Call, class Load, class Body>
__device__ __forceinline__ void for_heads(const Call& call, std::int64_t first, std::int64_t end,
                                          Angle* angles, const Load& load, const Body& body) {
  constexpr int kGroups = kThreads / kLanes;
  const int half = call.rotation.frequencies.half;
  const int column = static_cast<int>(threadIdx.x) % kLanes * kFour;
  const auto tokens = static_cast<int>(end - first < kHeadTokens ? end - first : kHeadTokens);
  const auto place_of = [&](int i) {
    const bool there = i < tokens * call.heads;
    const int turn = there ? i / call.heads : 0;
    const int head = there ? i - turn * call.heads : 0;
    return HeadPlace{first + turn, head, (first + turn) * call.heads + head, turn, there && column < half};
  };
  const int group = static_cast<int>(threadIdx.x) / kLanes;
  HeadPlace place = place_of(group);
  auto loaded = load(place);
  make_angles(call.rotation, first, tokens, kThreads, angles);
  __syncthreads();
  for (int i = group; i - group < tokens * call.heads; i += kGroups) {
    const HeadPlace next = place_of(i + kGroups);
    const auto ahead = load(next);
    body(place, loaded, angles + place.turn * half + column);
    place = next;
    loaded = ahead;
  }
}

// y <- rope(norm(x)), or without the norm
template <int kLanes, bool kNorm, DType kType, DType kWeight>
__global__ void __launch_bounds__(kThreads) heads_kernel(HeadsCall<kType, kWeight> call) {
  auto* angles = reinterpret_cast<Angle*>(shared_memory);
  const int half = call.rotation.frequencies.half;
  const int column = static_cast<int>(threadIdx.x) % kLanes * kFour;
  Eight weight{};
  if (kNorm && column < half) weight = load_halves<kWeight>(call.weight + column, half).wide();
  const auto load = [&](const HeadPlace& place) {
    return place.there ? load_halves<kType>(call.x.at(place.token, place.head) + column, half)
                       : Halves<kType>{};
  };
  const auto body = [&](const HeadPlace& place, const Halves<kType>& x, const Angle* turns) {
    Eight values = x.wide();
    if constexpr (kNorm) {
      float squares = 0;
#pragma unroll
      for (int j = 0; j < kEight; ++j) squares += values.at[j] * values.at[j];
      const float mean = sum_lanes<kLanes>(squares) / static_cast<float>(2 * half);
      const float rstd = 1.0F / sqrtf(mean + call.epsilon);
#pragma unroll
      for (int j = 0; j < kEight; ++j) values.at[j] = values.at[j] * rstd * weight.at[j];
      if (place.there && column == 0) call.rstd[place.row] = rstd;
    }
    if (!place.there) return;
    rotate(values, turns);
    store_halves<kType>(call.y.at(place.token, place.head) + column, half, values);
  };
  for_heads<kLanes>(call, static_cast<std::int64_t>(blockIdx.x) * kHeadTokens, call.tokens, angles, load,
                    body);
}

// The gradient of x, from that of y turned back; parts <- each block's sum of what is the weight's.
template <int kLanes, DType kType, DType kWeight>
__global__ void __launch_bounds__(kThreads, kHeadBlocks)
    heads_backward_kernel(HeadsCall<kType, kWeight> call) {
  constexpr int kGroups = kThreads / kLanes;
  auto* angles = reinterpret_cast<Angle*>(shared_memory);
  const int half = call.rotation.frequencies.half;
  const int group = static_cast<int>(threadIdx.x) / kLanes;
  const int column = static_cast<int>(threadIdx.x) % kLanes * kFour;
  Eight weight{};
  if (column < half) weight = load_halves<kWeight>(call.weight + column, half).wide();
  struct Loaded {
    Halves<kType> x;
    Halves<kType> gradient;
    float rstd;
  };
  const auto load = [&](const HeadPlace& place) {
    Loaded loaded{};
    if (place.there) {
      loaded.x = load_halves<kType>(call.x.at(place.token, place.head) + column, half);
      loaded.gradient = load_halves<kType>(call.y.at(place.token, place.head) + column, half);
      loaded.rstd = call.rstd[place.row];
    }
    return loaded;
  };
  Eight sums{};
  const auto body = [&](const HeadPlace& place, const Loaded& loaded, const Angle* turns) {
    Eight h = loaded.x.wide();
    Eight gradient = loaded.gradient.wide();
    if (place.there) rotate(gradient, turns);
    float dot = 0;
#pragma unroll
    for (int j = 0; j < kEight; ++j) {
      h.at[j] *= loaded.rstd;
      dot += gradient.at[j] * weight.at[j] * h.at[j];
    }
    const float mean = sum_lanes<kLanes>(dot) / static_cast<float>(2 * half);
    if (!place.there) return;
    Stored<kType>* to = call.gradient.at(place.token, place.head) + column;
    Eight result{};
    if (call.add) result = load_halves<kType>(to, half).wide();
#pragma unroll
    for (int j = 0; j < kEight; ++j) {
      sums.at[j] += gradient.at[j] * h.at[j];
      result.at[j] += loaded.rstd * (gradient.at[j] * weight.at[j] - h.at[j] * mean);
    }
    store_halves<kType>(to, half, result);
  };
  // Blocks have the same number of tokens, or one more.
  const std::int64_t end = call.tokens * (blockIdx.x + 1) / call.blocks;
  for (std::int64_t first = call.tokens * blockIdx.x / call.blocks; first < end; first += kHeadTokens) {
    for_heads<kLanes>(call, first, end, angles, load, body);
    __syncthreads();  // everybody has read the angles
  }
  auto* shared = reinterpret_cast<float*>(shared_memory);  // [groups, 2 * half]
  if (column < half) {
#pragma unroll
    for (int j = 0; j < kEight; ++j) {
      shared[group * 2 * half + column + j % kFour + j / kFour * half] = sums.at[j];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * half; i += kThreads) {
    float sum = 0;
    for (int g = 0; g < kGroups; ++g) sum += shared[g * 2 * half + i];
    call.parts[static_cast<std::int64_t>(blockIdx.x) * 2 * half + i] = sum;
  }
}

// body.operator()<lanes>() for heads of so many elements
template <class Body>
void with_lanes(int half, const Body& body) {
  if (half <= 8 * kFour) return body.template operator()<8>();
  if (half <= 16 * kFour) return body.template operator()<16>();
  return body.template operator()<kWarp>();
}

bool aligned(const TensorView& view) {
  const std::int64_t bytes = kFour * size_bytes(view.dtype());
  bool whole = reinterpret_cast<std::uintptr_t>(view.raw()) % static_cast<std::uintptr_t>(bytes) == 0;
  for (int i = 0; i + 1 < view.rank(); ++i) whole = whole && view.stride(i) % kFour == 0;
  return whole;
}

bool in_halves(const RopeFrequencies& frequencies, std::initializer_list<TensorView> views) {
  return frequencies.half % kFour == 0 && std::ranges::all_of(views, aligned);
}

template <DType kType, DType kWeight>
HeadsCall<kType, kWeight> call_of(const TensorView& x, const TensorView& y, const RopeCall& rope, Pass pass) {
  return {.x = Heads<kType>::of(x),
          .y = Heads<kType>::of(y),
          .tokens = x.extent(0),
          .heads = static_cast<int>(x.extent(1)),
          .rotation = {.positions = rope.positions.data<std::int32_t>(),
                       .frequencies = rope.frequencies,
                       .backward = pass == Pass::backward}};
}

std::int64_t angles_bytes(const RopeFrequencies& frequencies) {
  return kHeadTokens * frequencies.half * static_cast<std::int64_t>(sizeof(Angle));
}

}  // namespace

bool rope_in_halves(const TensorView& x, const RopeCall& rope, Pass pass, const Stream& stream) {
  if (!in_halves(rope.frequencies, {x})) return false;
  with_dtype(x.dtype(), [&]<DType kType>() {
    with_lanes(rope.frequencies.half, [&]<int kLanes>() {
      launch("rope_heads_kernel", heads_kernel<kLanes, false, kType, kType>,
             divide_up(x.extent(0), kHeadTokens), kThreads, angles_bytes(rope.frequencies), stream,
             call_of<kType, kType>(x, x, rope, pass));
    });
  });
  return true;
}

void rms_norm_rope_forward(const RmsNormForward& views, float epsilon, const RopeCall& rope,
                           const Stream& stream) {
  if (!in_halves(rope.frequencies, {views.x, views.y, views.weight})) {
    rms_norm_forward(views, epsilon, stream);
    return cuda::rope(views.y, rope.positions, rope.frequencies, Pass::forward, stream);
  }
  with_dtypes(views.x.dtype(), views.weight.dtype(), [&]<DType kType, DType kWeight>() {
    auto call = call_of<kType, kWeight>(views.x, views.y, rope, Pass::forward);
    call.weight = static_cast<const Stored<kWeight>*>(views.weight.raw());
    call.rstd = views.rstd.data<float>();
    call.epsilon = epsilon;
    with_lanes(rope.frequencies.half, [&]<int kLanes>() {
      launch("norm_rope_kernel", heads_kernel<kLanes, true, kType, kWeight>,
             divide_up(call.tokens, kHeadTokens), kThreads, angles_bytes(rope.frequencies), stream, call);
    });
  });
}

void rms_norm_rope_backward(const RmsNormBackward& views, Store x_gradient, const RopeCall& rope,
                            const TensorView& workspace, const Stream& stream) {
  if (views.x.elements() == 0) return;
  if (!in_halves(rope.frequencies, {views.x, views.y_gradient, views.x_gradient, views.weight})) {
    cuda::rope(views.y_gradient, rope.positions, rope.frequencies, Pass::backward, stream);
    return rms_norm_backward(views, x_gradient, workspace, stream);
  }
  const std::int64_t blocks = std::min(views.x.extent(0), std::int64_t{kHeadBlocks} * stream.device->cores);
  with_dtypes(views.x.dtype(), views.weight.dtype(), [&]<DType kType, DType kWeight>() {
    auto call = call_of<kType, kWeight>(views.x, views.y_gradient, rope, Pass::backward);
    call.gradient = Heads<kType>::of(views.x_gradient);
    call.weight = static_cast<const Stored<kWeight>*>(views.weight.raw());
    call.rstd = views.rstd.data<float>();
    call.add = x_gradient == Store::add;
    call.parts = static_cast<float*>(workspace.raw());
    call.blocks = blocks;
    with_lanes(rope.frequencies.half, [&]<int kLanes>() {
      const std::int64_t sums_bytes =
          kThreads / kLanes * 2 * rope.frequencies.half * static_cast<std::int64_t>(sizeof(float));
      launch("norm_rope_backward_kernel", heads_backward_kernel<kLanes, kType, kWeight>, blocks, kThreads,
             std::max(angles_bytes(rope.frequencies), sums_bytes), stream, call);
    });
  });
  add_parts(static_cast<const float*>(workspace.raw()), blocks, views.weight_gradient, stream);
}

}  // namespace headroom::cuda
