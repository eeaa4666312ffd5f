// The norm of the gradients, the factor that clips them, and AdamW's update. The factor stays in device
// memory: the host decides nothing.
#include "ops/cuda/eights.h"
#include "ops/cuda/ops.h"

namespace headroom::cuda {
namespace {

// parts <- the sum of squares of each block's share. In double: a square of f32 neither overflows nor loses a
// bit.
template <DType kType>
__global__ void squares_kernel(RowsOf<kType> from, std::int64_t elements, double* parts) {
  double sum = 0;
  for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kEight;
       i < elements; i += kSumBlocks * kThreads * kEight) {
    const Eight values = load_eight<kType>(from.data + i, elements - i, from.aligned);
#pragma unroll
    for (int j = 0; j < kEight; ++j) {
      const auto value = static_cast<double>(values.at[j]);
      sum += value * value;
    }
  }
  sum = sum_block<kThreads>(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

struct Scalar {
  void* data;
  bool f64;
  __device__ __forceinline__ double read() const {
    return f64 ? *static_cast<double*>(data) : static_cast<double>(*static_cast<float*>(data));
  }
  __device__ __forceinline__ void write(double value) const {
    if (f64) {
      *static_cast<double*>(data) = value;
    } else {
      *static_cast<float*>(data) = static_cast<float>(value);
    }
  }
};
Scalar scalar_of(const TensorView& view) {
  return {view.raw(), view.dtype() == DType::f64};
}

// result <- [result +] the parts; one block
__global__ void sum_parts_kernel(const double* parts, Scalar result, bool add) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < kSumBlocks; i += kThreads) sum += parts[i];
  sum = sum_block<kThreads>(sum);
  if (threadIdx.x == 0) result.write(add ? result.read() + sum : sum);
}

struct ClipCall {
  Scalar squares;
  float* norm;
  float* factor;
  std::int32_t* finite;
  Clipping clipping;
};

// One thread.
__global__ void clip_factor_kernel(ClipCall call) {
  if (threadIdx.x != 0) return;
  const double norm = call.clipping.scale * sqrt(call.squares.read());
  const auto stored = static_cast<float>(norm);
  const bool finite = stored - stored == 0.0F;
  const double fits = call.clipping.max_norm / (norm + 1e-6);
  *call.norm = stored;
  *call.factor = finite ? static_cast<float>(call.clipping.scale * (fits < 1 ? fits : 1.0)) : 0.0F;
  *call.finite = finite ? 1 : 0;
}

template <DType kWeight>
struct Update {
  AdamWFactors factors;
  RowsOf<DType::f32> master, gradient, first, second;
  RowsOf<kWeight> weight;  // null: the master is the weight
  const float* factor;
  [[nodiscard]] bool aligned() const {
    return master.aligned && gradient.aligned && first.aligned && second.aligned &&
           (weight.data == nullptr || weight.aligned);
  }
  template <class Count>
  __device__ void operator()(std::int64_t, std::int64_t column, Count count) const {
    const float scale = *factor;
    if (!(scale > 0)) return;
    Eight m = load_eight<DType::f32>(master.data + column, count, master.aligned);
    const Eight g = load_eight<DType::f32>(gradient.data + column, count, gradient.aligned);
    Eight moment = load_eight<DType::f32>(first.data + column, count, first.aligned);
    Eight square = load_eight<DType::f32>(second.data + column, count, second.aligned);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      const float scaled = g.at[i] * scale;
      moment.at[i] = factors.beta1 * moment.at[i] + factors.one_minus_beta1 * scaled;
      square.at[i] = factors.beta2 * square.at[i] + factors.one_minus_beta2 * (scaled * scaled);
      const float divisor = sqrtf(square.at[i]) * factors.inverse_root_bias + factors.epsilon;
      m.at[i] = m.at[i] * factors.decay - factors.step_size * (moment.at[i] / divisor);
    }
    store_eight<DType::f32>(first.data + column, count, first.aligned, moment);
    store_eight<DType::f32>(second.data + column, count, second.aligned, square);
    store_eight<DType::f32>(master.data + column, count, master.aligned, m);
    if (weight.data != nullptr) store_eight<kWeight>(weight.data + column, count, weight.aligned, m);
  }
};

// A block of moments is updated by eight neighbours in a warp.
constexpr int kBlockLanes = static_cast<int>(kMomentBlock) / kEight;
static_assert(kThreads % kBlockLanes == 0 && kWarp % kBlockLanes == 0);

// The largest over those lanes; the whole warp calls it.
__device__ __forceinline__ std::uint32_t largest_of_block(std::uint32_t bits) {
#pragma unroll
  for (int step = kBlockLanes / 2; step > 0; step /= 2) {
    const std::uint32_t other = float_bits(__shfl_xor_sync(0xffffffffu, float_of_bits(bits), step));
    bits = other > bits ? other : bits;
  }
  return bits;
}

struct alignas(8) EightCodes {
  std::uint8_t at[kEight];
};
// `count` of eight neighbours.
__device__ __forceinline__ EightCodes load_codes(const std::uint8_t* from, std::int64_t count, bool aligned) {
  if (aligned && count >= kEight) return *reinterpret_cast<const EightCodes*>(from);
  EightCodes codes;
#pragma unroll
  for (int i = 0; i < kEight; ++i) codes.at[i] = i < count ? from[i] : std::uint8_t{0};
  return codes;
}
__device__ __forceinline__ void store_codes(std::uint8_t* to, std::int64_t count, bool aligned,
                                            const EightCodes& codes) {
  if (aligned && count >= kEight) {
    *reinterpret_cast<EightCodes*>(to) = codes;
    return;
  }
#pragma unroll
  for (int i = 0; i < kEight; ++i) {
    if (i < count) to[i] = codes.at[i];
  }
}

struct MomentRow {
  std::uint8_t* codes;
  std::uint8_t* exponents;
  bool aligned;
};
MomentRow moment_row(const TensorView& codes, const TensorView& exponents) {
  auto* data = static_cast<std::uint8_t*>(codes.raw());
  return {data, static_cast<std::uint8_t*>(exponents.raw()), reinterpret_cast<std::uintptr_t>(data) % 8 == 0};
}

struct Narrow {
  AdamWFactors factors;
  Random random;
  std::int64_t first_element;
  std::int64_t elements;
  RowsOf<DType::bf16> weight, gradient;
  RowsOf<DType::bf16> first{}, second{};        // of moments of 16 bits
  MomentRow first_moments{}, second_moments{};  // of moments of 8
  const float* factor;
  std::int64_t blocks;
  bool aligned = false;  // everything, where moments have 16 bits
};

struct EightRoundings {
  RoundingBits at[kEight];
};

// weight and moments of eight neighbours <- those after the update; returns the bits that round them
template <class Count>
__device__ __forceinline__ EightRoundings update_eight(const Narrow& call, std::int64_t begin, Count count,
                                                       float scale, Moments (&moments)[kEight]) {
  const Eight weight = load_eight<DType::bf16>(call.weight.data + begin, count, call.weight.aligned);
  const Eight gradient = load_eight<DType::bf16>(call.gradient.data + begin, count, call.gradient.aligned);
  EightRoundings random;
  StoredEight<DType::bf16> after{};
  const auto pair = static_cast<std::uint64_t>(call.first_element + begin) / 2;
#pragma unroll
  for (int i = 0; i < kEight; i += 2) {
    const PairOfRoundingBits bits = rounding_bits(call.random, pair + static_cast<std::uint64_t>(i / 2));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      random.at[i + j] = bits.of[j];
      const float value =
          update_weight(call.factors, weight.at[i + j], scale * gradient.at[i + j], moments[i + j]);
      after.set_bits(i + j, round_to_bf16(value, bits.of[j].weight));
    }
  }
  store_bits<DType::bf16>(call.weight.data + begin, count, call.weight.aligned, after);
  return random;
}

template <class Count>
__device__ __forceinline__ void update_with_moments(const Narrow& call, std::int64_t begin, Count count,
                                                    float scale) {
  const Eight first = load_eight<DType::bf16>(call.first.data + begin, count, call.first.aligned);
  const Eight second = load_eight<DType::bf16>(call.second.data + begin, count, call.second.aligned);
  Moments moments[kEight];
#pragma unroll
  for (int i = 0; i < kEight; ++i) moments[i] = {first.at[i], second.at[i]};
  const EightRoundings random = update_eight(call, begin, count, scale, moments);
  StoredEight<DType::bf16> first_after{};
  StoredEight<DType::bf16> second_after{};
#pragma unroll
  for (int i = 0; i < kEight; ++i) {
    first_after.set_bits(i, round_to_bf16(moments[i].first, random.at[i].first));
    second_after.set_bits(i, round_to_bf16(moments[i].second, random.at[i].second));
  }
  store_bits<DType::bf16>(call.first.data + begin, count, call.first.aligned, first_after);
  store_bits<DType::bf16>(call.second.data + begin, count, call.second.aligned, second_after);
}

__global__ void __launch_bounds__(kThreads) narrow_adamw_kernel(Narrow call) {
  const float scale = *call.factor;
  if (!(scale > 0)) return;
  for (std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kEight;
       begin < call.elements; begin += call.blocks * kThreads * kEight) {
    if (call.aligned && call.elements - begin >= kEight) {
      update_with_moments(call, begin, Whole{}, scale);
    } else {
      update_with_moments(call, begin, call.elements - begin, scale);
    }
  }
}

// The same with moments of 8 bits. Every thread of a warp goes through every turn: the lanes of a block of
// moments ask each other.
__global__ void eight_bit_adamw_kernel(Narrow call) {
  const float scale = *call.factor;
  if (!(scale > 0)) return;
  const MomentRow& first = call.first_moments;
  const MomentRow& second = call.second_moments;
  for (std::int64_t turn = static_cast<std::int64_t>(blockIdx.x) * kThreads * kEight; turn < call.elements;
       turn += call.blocks * kThreads * kEight) {
    const std::int64_t begin = turn + static_cast<std::int64_t>(threadIdx.x) * kEight;
    const std::int64_t count = call.elements - begin;
    const std::int64_t block = begin / kMomentBlock;
    Moments moments[kEight] = {};
    EightRoundings random{};
    if (count > 0) {
      const EightCodes first_codes = load_codes(first.codes + begin, count, first.aligned);
      const EightCodes second_codes = load_codes(second.codes + begin, count, second.aligned);
      const std::uint32_t first_exponent = first.exponents[block];
      const std::uint32_t second_exponent = second.exponents[block];
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        moments[i] = decode_moments({first_codes.at[i], second_codes.at[i]}, first_exponent, second_exponent);
      }
      random = update_eight(call, begin, count, scale, moments);
    }
    std::uint32_t largest_first = 0;
    std::uint32_t largest_second = 0;
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if (i >= count) continue;
      const std::uint32_t first_bits = float_bits(moments[i].first) & 0x7fffffffu;
      const std::uint32_t second_bits = float_bits(moments[i].second);
      largest_first = first_bits > largest_first ? first_bits : largest_first;
      largest_second = second_bits > largest_second ? second_bits : largest_second;
    }
    const std::uint32_t first_exponent = FirstMomentCode::block_exponent(largest_of_block(largest_first));
    const std::uint32_t second_exponent = SecondMomentCode::block_exponent(largest_of_block(largest_second));
    if (count <= 0) continue;
    EightCodes first_codes, second_codes;
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      const EightBitMoments codes = encode_moments(moments[i], first_exponent, second_exponent, random.at[i]);
      first_codes.at[i] = codes.first;
      second_codes.at[i] = codes.second;
    }
    store_codes(first.codes + begin, count, first.aligned, first_codes);
    store_codes(second.codes + begin, count, second.aligned, second_codes);
    if (threadIdx.x % kBlockLanes != 0) continue;
    first.exponents[block] = static_cast<std::uint8_t>(first_exponent);
    second.exponents[block] = static_cast<std::uint8_t>(second_exponent);
  }
}

}  // namespace

void sum_of_squares(const TensorView& view, const TensorView& result, Store store,
                    const TensorView& workspace, const Stream& stream) {
  auto* parts = static_cast<double*>(workspace.raw());
  with_dtype(view.dtype(), [&]<DType kType>() {
    launch("squares_kernel", squares_kernel<kType>, kSumBlocks, kThreads, sum_block_bytes(kThreads), stream,
           one_row_of<kType>(view), view.elements(), parts);
  });
  launch("sum_parts_kernel", sum_parts_kernel, 1, kThreads, sum_block_bytes(kThreads), stream,
         static_cast<const double*>(parts), scalar_of(result), store == Store::add);
}

void clip_factor(const ClipFactor& views, const Clipping& clipping, const Stream& stream) {
  launch("clip_factor_kernel", clip_factor_kernel, 1, 32, 0, stream,
         ClipCall{.squares = scalar_of(views.sum_of_squares),
                  .norm = views.norm.data<float>(),
                  .factor = views.factor.data<float>(),
                  .finite = views.finite.data<std::int32_t>(),
                  .clipping = clipping});
}

void adamw(const AdamWViews& views, const AdamWFactors& factors, const Stream& stream) {
  const bool copied = views.weight.raw() != views.master.raw();
  with_dtype(views.weight.dtype(), [&]<DType kWeight>() {
    for_eights("adamw_kernel", 1, views.master.elements(), stream,
               Update<kWeight>{.factors = factors,
                               .master = one_row_of<DType::f32>(views.master),
                               .gradient = one_row_of<DType::f32>(views.gradient),
                               .first = one_row_of<DType::f32>(views.first),
                               .second = one_row_of<DType::f32>(views.second),
                               .weight = copied ? one_row_of<kWeight>(views.weight) : RowsOf<kWeight>{},
                               .factor = views.factor.data<float>()});
  });
}

void adamw_narrow(const NarrowUpdate& update, const Stream& stream) {
  const NarrowAdamWViews& views = update.views;
  const std::int64_t elements = views.weight.elements();
  if (elements == 0) return;
  Narrow call{.factors = update.factors,
              .random = update.random,
              .first_element = update.first_element,
              .elements = elements,
              .weight = one_row_of<DType::bf16>(views.weight),
              .gradient = one_row_of<DType::bf16>(views.gradient),
              .factor = views.factor.data<float>(),
              .blocks = blocks_for(divide_up(elements, kEight), stream)};
  if (views.first.dtype() == DType::u8) {
    call.first_moments = moment_row(views.first, views.first_exponents);
    call.second_moments = moment_row(views.second, views.second_exponents);
    launch("eight_bit_adamw_kernel", eight_bit_adamw_kernel, call.blocks, kThreads, 0, stream, call);
  } else {
    call.first = one_row_of<DType::bf16>(views.first);
    call.second = one_row_of<DType::bf16>(views.second);
    call.aligned = call.weight.aligned && call.gradient.aligned && call.first.aligned && call.second.aligned;
    launch("narrow_adamw_kernel", narrow_adamw_kernel, call.blocks, kThreads, 0, stream, call);
  }
}

}  // namespace headroom::cuda
