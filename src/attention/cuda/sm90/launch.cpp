// Tensor maps and launches of the Hopper kernels: a pass is one launch that multiplies, or two where dQ is
// apart; with dilation so for every pattern (and in backward for every query head of a group, whose rows
// differ).
#include <algorithm>
#include <array>

#include "attention/cuda/intervals/portable.h"
#include "attention/cuda/sm90/kernels.h"
#include "attention/cuda/sm90/sm90.h"
#include "attention/cuda/steps.h"
#include "attention/implementations.h"
#include "cuda/check.h"
#include "headroom/core/checked.h"

namespace headroom::sm90 {
namespace {

cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.native);
}

cuda::HeadsView rows_of(const TensorView& view) {
  return {view.raw(), view.stride(0), view.stride(1), view.stride(2)};
}

// f32 sums in the shape of a tensor.
cuda::HeadsView sums_rows(float* sums, const TensorView& tensor) {
  return rows_of(TensorView(sums, DType::f32, tensor.shape()));
}

// The driver's function, found at run time: no build links the driver.
decltype(&cuTensorMapEncodeTiled) encode_function() {
  static const auto kFunction = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                                &result),
               "cudaGetDriverEntryPointByVersion");
    check(function != nullptr,
          "the CUDA driver has no cuTensorMapEncodeTiled; it has to be of version 12.0 or later");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return kFunction;
}

// Rows of a tensor in boxes of `box_rows` by 64 columns. Dimensions: columns, offset among `rate` rows, rows
// in steps of it, heads, batch.
CUtensorMap tensor_map(const TensorView& view, std::string_view what, std::int64_t rate, int box_rows) {
  constexpr std::int64_t kUnit = 16;  // bytes the copy engine counts in
  const std::int64_t element = size_bytes(view.dtype());
  const auto stride = [&](int dimension, std::int64_t step) {
    return view.extent(dimension) <= 1 ? kUnit : view.stride(dimension) * step * element;
  };
  const std::array<std::int64_t, 4> strides = {stride(1, 1), stride(1, rate), stride(2, 1), stride(0, 1)};
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(view.raw()));
  check(address % kUnit == 0 &&
            std::all_of(strides.begin(), strides.end(), [](std::int64_t s) { return s % kUnit == 0; }),
        "{} has rows that do not start at multiples of 16 bytes (strides {}, {} and {}); pin attention "
        "'portable' for it",
        what, view.stride(0), view.stride(1), view.stride(2));
  const std::array<cuuint64_t, 5> extents = {
      static_cast<cuuint64_t>(view.extent(3)), static_cast<cuuint64_t>(rate),
      static_cast<cuuint64_t>(view.extent(1) / rate), static_cast<cuuint64_t>(view.extent(2)),
      static_cast<cuuint64_t>(view.extent(0))};
  const std::array<cuuint64_t, 4> byte_strides = {
      static_cast<cuuint64_t>(strides[0]), static_cast<cuuint64_t>(strides[1]),
      static_cast<cuuint64_t>(strides[2]), static_cast<cuuint64_t>(strides[3])};
  const std::array<cuuint32_t, 5> box = {64, 1, static_cast<cuuint32_t>(box_rows), 1, 1};
  const std::array<cuuint32_t, 5> every = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result = encode_function()(
      &map, view.dtype() == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      5, view.raw(), extents.data(), byte_strides.data(), box.data(), every.data(),
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS, "{} cannot be described to the copy engine (driver error {})", what,
        static_cast<int>(result));
  return map;
}

// One pattern of a problem: its rows and what they see.
struct Pattern {
  Places queries;
  Places keys;
  Intervals seen;
  Intervals seen_by;
  cuda::Visits visits;
  cuda::Visits query_visits;  // of dQ's kernel, where it is apart
  std::int64_t rate = 1;
  bool listed = false;

  // Rows of a box of the tensor map.
  [[nodiscard]] int box(int rows) const { return listed ? 1 : rows; }
};

int limited(std::int64_t window, std::int64_t rate) {
  return static_cast<int>(std::min<std::int64_t>(window / rate, (std::int64_t{1} << 30) - 1));
}

Pattern make_pattern(const AttentionProblem& problem, const Memory& memory, int index) {
  const Mask& mask = problem.mask;
  const Source source = source_of(problem);
  Pattern pattern;
  pattern.listed = source == Source::lists;
  Dilation dilation;
  if (mask.dilation_count > 0 && !pattern.listed) dilation = mask.dilations[static_cast<std::size_t>(index)];
  pattern.rate = dilation.rate;
  const auto heads = static_cast<int>(problem.heads_q);
  const auto places = [&](std::int64_t rows) {
    return Places{.rows = memory.lists.rows,
                  .counts = memory.lists.counts,
                  .capacity = static_cast<int>(memory.lists.capacity),
                  .heads = heads,
                  .count = static_cast<int>(rows / pattern.rate),
                  .rate = static_cast<int>(pattern.rate)};
  };
  pattern.queries = places(problem.seq_q);
  pattern.keys = places(problem.seq_k);
  const auto shift = static_cast<int>(problem.seq_k - problem.seq_q);
  const int left = limited(mask.window_left, pattern.rate);
  const int right = mask.causal ? 0 : limited(mask.window_right, pattern.rate);
  pattern.seen = {.others = pattern.keys.count, .shift = shift, .before = left, .after = right};
  pattern.seen_by = {.others = pattern.queries.count, .shift = -shift, .before = right, .after = left};
  if (dilation.segment > 0 && dilation.segment < problem.seq_q) {
    pattern.seen.segment = pattern.seen_by.segment = static_cast<int>(dilation.segment / pattern.rate);
  }
  if (source != Source::formula) {
    const std::int64_t query_capacity = memory.lists.capacity;
    const std::int64_t key_capacity = pattern.listed ? memory.lists.capacity : problem.seq_k;
    const std::int64_t lists = pattern.listed ? problem.heads_q : 1;
    pattern.seen.first = memory.lists.first;
    pattern.seen.last = memory.lists.last;
    pattern.seen.batch_stride = lists * query_capacity;
    pattern.seen.head_stride = pattern.listed ? query_capacity : 0;
    pattern.seen_by.first = memory.seen_by_first;
    pattern.seen_by.last = memory.seen_by_last;
    pattern.seen_by.batch_stride = lists * key_capacity;
    pattern.seen_by.head_stride = pattern.listed ? key_capacity : 0;
  }
  pattern.visits = memory.visits;
  pattern.query_visits = memory.query_visits;
  return pattern;
}

// What the kernels for lists and rows take, which `portable` shares.
cuda::AttentionCall shared_call(const AttentionProblem& problem, const AttentionForward& views,
                                const Memory& memory, int pattern) {
  cuda::AttentionCall call = cuda::attention_call(problem, views);
  call.lists = memory.lists;
  call.pattern = pattern;
  return call;
}

// What kernels read of the mask that does not follow from the place.
void write_lists(const AttentionProblem& problem, const cuda::AttentionCall& call, const Pattern& pattern,
                 Pass pass, const Stream& stream) {
  if (pattern.visits.counts != nullptr) {
    copy_lists(call, pattern.visits.lists, stream);
    write_visits(call, pattern.visits, stream);
  }
  if (pattern.query_visits.counts != nullptr) write_visits(call, pattern.query_visits, stream);
  if (source_of(problem) == Source::formula) return;
  cuda::portable_kernels().write_lists(call, stream);
  if (pass == Pass::forward) return;
  const bool listed = pattern.listed;
  const auto lists = static_cast<int>(problem.batch * (listed ? problem.heads_q : 1));
  Intervals seen = pattern.seen;
  seen.head_stride = 0;
  seen.batch_stride = call.lists.capacity;
  write_seen_by(seen, call.lists.counts, static_cast<int>(problem.seq_q), lists,
                static_cast<int>(listed ? call.lists.capacity : problem.seq_k),
                const_cast<int*>(pattern.seen_by.first), const_cast<int*>(pattern.seen_by.last),
                native(stream));
}

// As many heads side by side as have their keys and values in half of the L2.
int forward_section(const AttentionProblem& problem, const DeviceDescription& device) {
  const std::int64_t head_bytes =
      std::max<std::int64_t>(4 * problem.seq_k * problem.head_dim / (problem.heads_q / problem.heads_kv), 1);
  return static_cast<int>(
      std::clamp<std::int64_t>(device.l2_bytes / 2 / head_bytes, 1, problem.batch * problem.heads_q));
}

// As many as give every multiprocessor a tile, and with a causal mask two: neighbours in the order then work
// on different heads, and wait less for their turns. Sections of one size: a last, smaller one would wait
// more.
int backward_section(const AttentionProblem& problem, const DeviceDescription& device, int tiles) {
  const std::int64_t heads = problem.batch * problem.heads_kv;
  const std::int64_t wanted =
      divide_up(std::int64_t{device.cores} * (problem.mask.causal ? 2 : 1), std::max(tiles, 1));
  const std::int64_t sections = divide_up(heads, std::min(wanted, heads));
  return static_cast<int>(divide_up(heads, sections));
}

void zero_counters(const Memory& memory, std::int64_t bytes, const Stream& stream) {
  check_cuda(cudaMemsetAsync(memory.counters, 0, static_cast<std::size_t>(bytes), native(stream)),
             "cudaMemsetAsync");
}

void run_forward(const AttentionProblem& problem, const AttentionForward& views, const Memory& memory,
                 const Pattern& pattern, float* output_sums, float* lse, const Stream& stream) {
  const int head_dim = forward_head_dim(static_cast<int>(problem.head_dim));
  const ForwardTile tile = forward_tile(head_dim, is_general(problem));
  const int rows = 64 * tile.consumers;
  ForwardCall call;
  call.query = tensor_map(views.query, "query", pattern.rate, pattern.box(rows));
  call.key = tensor_map(views.key, "key", pattern.rate, pattern.box(tile.keys));
  call.value = tensor_map(views.value, "value", pattern.rate, pattern.box(tile.keys));
  call.queries = pattern.queries;
  call.keys = pattern.keys;
  call.seen = pattern.seen;
  const std::int64_t places = pattern.listed ? memory.lists.capacity : pattern.queries.count;
  call.order = {.tiles_per_head = static_cast<int>(divide_up(places, rows)),
                .heads = static_cast<int>(problem.batch * problem.heads_q),
                .heads_per_section = forward_section(problem, *stream.device)};
  call.heads_q = static_cast<int>(problem.heads_q);
  call.group = static_cast<int>(problem.heads_q / problem.heads_kv);
  call.head_dim = static_cast<int>(problem.head_dim);
  call.rows = static_cast<int>(problem.seq_q);
  call.scale = score_scale(problem);
  call.softcap = problem.softcap;
  call.sinks = problem.sinks ? views.sinks.data<float>() : nullptr;
  call.output = rows_of(views.output);
  call.output_sums = output_sums;
  call.lse = lse;
  call.next_tile = memory.counters;
  call.visits = pattern.visits;
  zero_counters(memory, Memory::kNextTileBytes, stream);
  const int tiles = call.order.tiles_per_head * call.order.heads;
  kernels(problem.dtype, head_dim).forward(call, std::min(stream.device->cores, tiles), native(stream));
}

struct BackwardTargets {
  cuda::HeadsView query_gradient;
  cuda::HeadsView key_gradient;
  cuda::HeadsView value_gradient;
};

void run_before(const AttentionProblem& problem, const AttentionBackward& views, const Memory& memory,
                const Pattern& pattern, const Stream& stream) {
  const Kernels& compiled = kernels(problem.dtype, backward_head_dim(static_cast<int>(problem.head_dim)));
  BeforeCall call;
  call.output = memory.output == nullptr ? rows_of(views.forward.output)
                                         : sums_rows(memory.output, views.forward.output);
  call.output_is_f32 = memory.output != nullptr;
  call.output_gradient = rows_of(views.output_gradient);
  call.queries = pattern.queries;
  call.lse = views.forward.lse.data<float>();
  call.lse_gradient = views.lse_gradient.elements() > 0 ? views.lse_gradient.data<float>() : nullptr;
  call.lse_log2 = memory.lse_log2;
  call.delta = memory.delta;
  call.batch = static_cast<int>(problem.batch);
  call.heads = static_cast<int>(problem.heads_q);
  call.rows = static_cast<int>(problem.seq_q);
  call.padded_places = static_cast<int>(memory.padded_places);
  call.head_dim = static_cast<int>(problem.head_dim);
  compiled.before_backward(call, native(stream));
}

// dK and dV, and dQ unless it is apart, of some query heads of every group: [first_member, first_member +
// members).
void run_backward(const AttentionProblem& problem, const AttentionBackward& views, const Memory& memory,
                  const Pattern& pattern, const BackwardTargets& targets, std::int64_t group_begin,
                  std::int64_t group_heads, const Stream& stream) {
  const int head_dim = backward_head_dim(static_cast<int>(problem.head_dim));
  const Kernels& compiled = kernels(problem.dtype, head_dim);
  const int queries = backward_tile(head_dim, is_general(problem)).queries;
  const int keys = backward_keys(head_dim);
  const AttentionForward& inputs = views.forward;
  BackwardCall call;
  call.query = tensor_map(inputs.query, "query", pattern.rate, pattern.box(queries));
  call.key = tensor_map(inputs.key, "key", pattern.rate, pattern.box(keys));
  call.value = tensor_map(inputs.value, "value", pattern.rate, pattern.box(keys));
  call.output_gradient =
      tensor_map(views.output_gradient, "output_gradient", pattern.rate, pattern.box(queries));
  call.queries = pattern.queries;
  call.keys = pattern.keys;
  call.seen = pattern.seen;
  call.seen_by = pattern.seen_by;
  const std::int64_t places = pattern.listed ? memory.lists.capacity : pattern.keys.count;
  const auto tiles_per_head = static_cast<int>(divide_up(places, keys));
  call.order = {.tiles_per_head = tiles_per_head,
                .heads = static_cast<int>(problem.batch * problem.heads_kv),
                .heads_per_section = backward_section(problem, *stream.device, tiles_per_head)};
  call.heads_q = static_cast<int>(problem.heads_q);
  call.group = static_cast<int>(problem.heads_q / problem.heads_kv);
  call.group_begin = static_cast<int>(group_begin);
  call.group_heads = static_cast<int>(group_heads);
  call.head_dim = static_cast<int>(problem.head_dim);
  call.scale = score_scale(problem);
  call.softcap = problem.softcap;
  call.lse = memory.lse_log2;
  call.delta = memory.delta;
  call.padded_places = static_cast<int>(memory.padded_places);
  call.query_sums = memory.query_sums;
  call.next_tile = memory.counters;
  call.turns = problem.deterministic && !queries_apart(head_dim)
                   ? memory.counters + Memory::kNextTileBytes / 4
                   : nullptr;
  call.key_gradient = targets.key_gradient;
  call.value_gradient = targets.value_gradient;
  call.add_key_gradients = memory.adds_key_gradients;
  call.visits = pattern.visits;
  zero_counters(memory, memory.counter_bytes, stream);
  if (!problem.deterministic && memory.query_sums != nullptr) {
    check_cuda(cudaMemsetAsync(memory.query_sums, 0, static_cast<std::size_t>(memory.query_sums_bytes),
                               native(stream)),
               "cudaMemsetAsync");
  }
  const int tiles = tiles_per_head * call.order.heads;
  if (tiles > 0) compiled.backward(call, std::min(stream.device->cores, tiles), native(stream));
  if (queries_apart(head_dim)) return;

  AfterCall after;
  after.query_sums = memory.query_sums;
  after.queries = pattern.queries;
  after.seen = pattern.seen;
  after.query_gradient = targets.query_gradient;
  after.add = memory.adds_query_gradient;
  after.batch = static_cast<int>(problem.batch);
  after.heads = call.heads_q;
  after.group_begin = call.group_begin;
  after.group_heads = call.group_heads;
  after.group = call.group;
  after.query_tiles = static_cast<int>(memory.padded_places / queries);
  after.head_dim = call.head_dim;
  after.scale = call.scale;
  after.visits = call.visits;
  compiled.after_backward(after, call.general(), native(stream));
}

// dQ of every head, apart.
void run_backward_queries(const AttentionProblem& problem, const AttentionBackward& views,
                          const Memory& memory, const Pattern& pattern, const BackwardTargets& targets,
                          const Stream& stream) {
  const int head_dim = backward_head_dim(static_cast<int>(problem.head_dim));
  const AttentionForward& inputs = views.forward;
  const auto [queries, keys] = kApartTile;
  QueriesCall call;
  call.query = tensor_map(inputs.query, "query", pattern.rate, pattern.box(queries));
  call.key = tensor_map(inputs.key, "key", pattern.rate, pattern.box(keys));
  call.value = tensor_map(inputs.value, "value", pattern.rate, pattern.box(keys));
  call.output_gradient =
      tensor_map(views.output_gradient, "output_gradient", pattern.rate, pattern.box(queries));
  call.queries = pattern.queries;
  call.keys = pattern.keys;
  call.seen = pattern.seen;
  const std::int64_t places = pattern.listed ? memory.lists.capacity : pattern.queries.count;
  call.order = {.tiles_per_head = static_cast<int>(divide_up(places, queries)),
                .heads = static_cast<int>(problem.batch * problem.heads_q),
                .heads_per_section = forward_section(problem, *stream.device)};
  call.heads_q = static_cast<int>(problem.heads_q);
  call.group = static_cast<int>(problem.heads_q / problem.heads_kv);
  call.head_dim = static_cast<int>(problem.head_dim);
  call.scale = score_scale(problem);
  call.softcap = problem.softcap;
  call.lse = memory.lse_log2;
  call.delta = memory.delta;
  call.padded_places = static_cast<int>(memory.padded_places);
  call.query_gradient = targets.query_gradient;
  call.add = memory.adds_query_gradient;
  call.next_tile = memory.counters;
  call.visits = pattern.query_visits;
  zero_counters(memory, Memory::kNextTileBytes, stream);
  const int tiles = call.order.tiles_per_head * call.order.heads;
  kernels(problem.dtype, head_dim)
      .backward_queries(call, std::min(stream.device->cores, tiles), native(stream));
}

}  // namespace

void forward(const AttentionProblem& problem, const AttentionForward& views, const TensorView& workspace,
             const Stream& stream) {
  if (views.lse.elements() == 0) return;
  const Memory memory(problem, Pass::forward, static_cast<std::byte*>(workspace.raw()));
  const cuda::IntervalKernels& shared = cuda::portable_kernels();
  float* lse = views.lse.data<float>();
  if (problem.mask.dilation_count > 0 || problem.seq_k == 0) {
    // Before its first pattern a row has seen nothing, or its sink; rows that take no part stay so.
    cuda::AttentionCall call = shared_call(problem, views, memory, 0);
    if (memory.output != nullptr) call.output = cuda::sums_view(memory.output, views.output);
    shared.start_rows(call, stream);
  }
  if (problem.seq_k == 0) return;
  for (int i = 0; i < problem.mask.patterns_per_head(); ++i) {
    const Pattern pattern = make_pattern(problem, memory, i);
    write_lists(problem, shared_call(problem, views, memory, i), pattern, Pass::forward, stream);
    run_forward(problem, views, memory, pattern, memory.output, lse, stream);
  }
  if (memory.output != nullptr) {
    const cuda::AttentionCall call = shared_call(problem, views, memory, 0);
    shared.narrow(call, call.output, cuda::sums_view(memory.output, views.output), problem.seq_q,
                  problem.heads_q, stream);
  }
}

void backward(const AttentionProblem& problem, const AttentionBackward& views, const TensorView& workspace,
              const Stream& stream) {
  const Memory memory(problem, Pass::backward, static_cast<std::byte*>(workspace.raw()));
  const cuda::IntervalKernels& shared = cuda::portable_kernels();
  const std::int64_t group = problem.heads_q / problem.heads_kv;
  const bool dilated = problem.mask.dilation_count > 0;
  cuda::AttentionCall call = shared_call(problem, views.forward, memory, 0);
  call.output_gradient = cuda::heads_view(views.output_gradient);
  call.query_gradient = cuda::heads_view(views.query_gradient);
  call.key_gradient = cuda::heads_view(views.key_gradient);
  call.value_gradient = cuda::heads_view(views.value_gradient);
  const cuda::TypedHeadsView query_gradient = call.query_gradient;
  const cuda::TypedHeadsView key_gradient = call.key_gradient;
  const cuda::TypedHeadsView value_gradient = call.value_gradient;
  BackwardTargets targets{rows_of(views.query_gradient), rows_of(views.key_gradient),
                          rows_of(views.value_gradient)};
  if (memory.adds_query_gradient) {
    call.query_gradient = cuda::sums_view(memory.query_gradient, views.query_gradient);
    targets.query_gradient = sums_rows(memory.query_gradient, views.query_gradient);
  }
  if (memory.adds_key_gradients) {
    call.key_gradient = cuda::sums_view(memory.key_gradient, views.key_gradient);
    call.value_gradient = cuda::sums_view(memory.value_gradient, views.value_gradient);
    targets.key_gradient = sums_rows(memory.key_gradient, views.key_gradient);
    targets.value_gradient = sums_rows(memory.value_gradient, views.value_gradient);
  }
  if (problem.sinks) {
    call.lse_gradient = views.lse_gradient.elements() > 0 ? views.lse_gradient.data<float>() : nullptr;
    call.sinks_gradient = views.sinks_gradient.data<float>();
    call.row_shift = memory.row_shift;
    call.row_dot = memory.row_dot;
    shared.row_statistics(call, stream);
    shared.sinks_gradient(call, stream);
  }
  const bool nothing_seen = problem.seq_q == 0 || problem.seq_k == 0;
  if (dilated || nothing_seen) {
    const auto zero = [&](const TensorView& tensor, const cuda::TypedHeadsView& rows) {
      if (rows.data != tensor.raw() || !tensor.is_dense()) {
        shared.zero(call, rows, tensor.extent(1), tensor.extent(2), stream);
        return;
      }
      check_cuda(cudaMemsetAsync(tensor.raw(), 0,
                                 static_cast<std::size_t>(tensor.elements() * size_bytes(tensor.dtype())),
                                 native(stream)),
                 "cudaMemsetAsync");
    };
    zero(views.query_gradient, call.query_gradient);
    zero(views.key_gradient, call.key_gradient);
    zero(views.value_gradient, call.value_gradient);
  }
  if (nothing_seen) return;
  for (int i = 0; i < problem.mask.patterns_per_head(); ++i) {
    const Pattern pattern = make_pattern(problem, memory, i);
    cuda::AttentionCall alone = shared_call(problem, views.forward, memory, i);
    write_lists(problem, alone, pattern, Pass::backward, stream);
    if (problem.mask.detach_mixing) {
      // With the weights constant, a pattern's gradient is that of its own softmax: dS <- w P (dP - dO .
      // O_pattern), where w P is made from the merged lse.
      alone.output = cuda::sums_view(memory.output, views.forward.output);
      alone.lse = memory.pattern_lse;
      shared.start_rows(alone, stream);
      run_forward(problem, views.forward, memory, pattern, memory.output, memory.pattern_lse, stream);
    }
    run_before(problem, views, memory, pattern, stream);
    const std::int64_t group_heads = dilated ? 1 : group;
    for (std::int64_t first = 0; first < group; first += group_heads) {
      run_backward(problem, views, memory, pattern, targets, first, group_heads, stream);
    }
    if (queries_apart(backward_head_dim(static_cast<int>(problem.head_dim)))) {
      run_backward_queries(problem, views, memory, pattern, targets, stream);
    }
  }
  if (memory.adds_query_gradient) {
    shared.narrow(call, query_gradient, call.query_gradient, problem.seq_q, problem.heads_q, stream);
  }
  if (memory.adds_key_gradients) {
    shared.narrow(call, key_gradient, call.key_gradient, problem.seq_k, problem.heads_kv, stream);
    shared.narrow(call, value_gradient, call.value_gradient, problem.seq_k, problem.heads_kv, stream);
  }
}

}  // namespace headroom::sm90
