// The launches of the Hopper kernels, with their tensor maps: a pattern is one launch that multiplies, or two
// where dQ is apart; in backward with dilation so for every query head of a group, whose rows differ.
#include <algorithm>
#include <array>
#include <type_traits>

#include "attention/cuda/sm90/kernels.h"
#include "attention/cuda/sm90/plan.h"
#include "cuda/check.h"
#include "cuda/vendor_libraries.h"
#include "headroom/core/checked.h"

namespace headroom::cuda::sm90 {
namespace {

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

// Rows of a [batch, rows, heads, head_dim] tensor in boxes of `box_rows` by 64 columns. Dimensions: columns,
// offset among `rate` rows, rows in steps of it, heads, batch.
CUtensorMap tensor_map(const TypedHeadsView& view, const std::array<std::int64_t, 4>& shape,
                       std::int64_t rate, int box_rows) {
  const auto [batch, rows, heads, head_dim] = shape;
  const auto bytes = [&](std::int64_t extent, std::int64_t stride) {
    return static_cast<cuuint64_t>(extent <= 1 ? kRowAlignmentBytes : stride * size_bytes(view.dtype));
  };
  const std::array<cuuint64_t, 5> extents = {static_cast<cuuint64_t>(head_dim), static_cast<cuuint64_t>(rate),
                                             static_cast<cuuint64_t>(rows / rate),
                                             static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(batch)};
  const std::array<cuuint64_t, 4> strides = {bytes(rows, view.row_stride),
                                             bytes(rows, view.row_stride * rate),
                                             bytes(heads, view.head_stride), bytes(batch, view.batch_stride)};
  const std::array<cuuint32_t, 5> box = {64, 1, static_cast<cuuint32_t>(box_rows), 1, 1};
  const std::array<cuuint32_t, 5> every = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result = encode_function()(
      &map, view.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 5,
      view.data, extents.data(), strides.data(), box.data(), every.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS,
        "a tensor with strides of {}, {} and {} elements cannot be described to the copy engine (driver "
        "error {})",
        view.batch_stride, view.row_stride, view.head_stride, static_cast<int>(result));
  return map;
}

// Strides are checked when the row is picked; addresses are known in a run only.
void check_addresses(std::initializer_list<const TensorView*> views) {
  for (const TensorView* view : views) {
    check(reinterpret_cast<std::uintptr_t>(view->raw()) % kRowAlignmentBytes == 0,
          "attention on Hopper was given a tensor whose address is no multiple of {} bytes; pin attention "
          "'portable' for it",
          kRowAlignmentBytes);
  }
}

void set_to_zero(void* data, std::int64_t bytes, const Stream& stream) {
  check_cuda(
      cudaMemsetAsync(data, 0, static_cast<std::size_t>(bytes), static_cast<cudaStream_t>(stream.native)),
      "cudaMemsetAsync");
}

// One pattern of a problem: its rows and what they see.
struct Pattern {
  Places queries;
  Places keys;
  Intervals seen;
  Intervals seen_by;

  [[nodiscard]] static Pattern of(const AttentionProblem& problem, const Workspace& workspace, int index);
};

Pattern Pattern::of(const AttentionProblem& problem, const Workspace& workspace, int index) {
  const RowLists& lists = workspace.lists;
  Dilation dilation;
  if (dilated(problem) && !lists.per_head) {
    dilation = problem.mask.dilations[static_cast<std::size_t>(index)];
  }
  const auto places = [&](std::int64_t rows, const std::int32_t* list, const std::int32_t* counts,
                          std::int64_t capacity) {
    return Places{.rows = list,
                  .counts = counts,
                  .capacity = static_cast<int>(capacity),
                  .heads = static_cast<int>(problem.heads_q),
                  .count = static_cast<int>(rows / dilation.rate),
                  .rate = static_cast<int>(dilation.rate)};
  };
  const auto read = [&](Intervals& intervals, const std::int32_t* first, const std::int32_t* last,
                        std::int64_t capacity) {
    if (first == nullptr) return;
    intervals.first = first;
    intervals.last = last;
    intervals.batch_stride = capacity * (lists.per_head ? problem.heads_q : 1);
    intervals.head_stride = lists.per_head ? capacity : 0;
  };
  auto [seen, seen_by] = IntervalsOfPlaces::of(problem, dilation);
  read(seen, lists.first, lists.last, lists.capacity);
  read(seen_by, workspace.seen_by_first, workspace.seen_by_last, lists.key_capacity);
  return {.queries = places(problem.seq_q, lists.rows, lists.counts, lists.capacity),
          .keys = places(problem.seq_k, lists.key_rows, lists.key_counts, lists.key_capacity),
          .seen = seen,
          .seen_by = seen_by};
}

// Sections of as many heads as have their keys and values in half of the L2.
int forward_sections(const AttentionProblem& problem, const DeviceDescription& device) {
  const std::int64_t head_bytes =
      std::max<std::int64_t>(4 * problem.seq_k * problem.head_dim / (problem.heads_q / problem.heads_kv), 1);
  const std::int64_t heads = problem.batch * problem.heads_q;
  return static_cast<int>(
      divide_up(heads, std::clamp<std::int64_t>(device.l2_bytes / 2 / head_bytes, 1, heads)));
}

// A mask may have room for many more documents than a batch has, and too many heads side by side lose a
// tenth.
constexpr std::int64_t kMostDocuments = 16;

// Sections of as many heads as give every multiprocessor a tile, and with a causal mask two, unless the chunk
// lies behind all of its keys: neighbours in the order then work on different heads, and wait less for their
// turns. They wait inside a document and a window only, so it is the tiles of these that count.
int backward_sections(const AttentionProblem& problem, const DeviceDescription& device,
                      const TileOrder& order, const Intervals& seen, int window_tiles) {
  const auto documents =
      static_cast<int>(std::clamp<std::int64_t>(problem.mask.max_documents, 1, kMostDocuments));
  const int tiles = std::clamp(order.tiles_per_head / documents, 1, std::max(window_tiles, 1));
  const bool causal = problem.mask.causal && seen.end_shift < seen.others;
  const int wanted = divide_up(device.cores * (causal ? 2 : 1), tiles);
  return std::max(order.heads / wanted, 1);
}

// What the sequence launches (attention/cuda/sequence.h).
struct Launches {
  static constexpr bool kAddsQueryGradient = false;

  const AttentionProblem& problem;
  Workspace workspace;
  const SharedLaunches& shared;
  const Stream& stream;

  void write_lists(const AttentionCall& call) const {
    if (workspace.visits.counts != nullptr) {
      copy_lists(call, workspace.visits.lists, stream);
      write_visits(call, workspace.visits, stream);
    }
    if (workspace.query_visits.counts != nullptr) write_visits(call, workspace.query_visits, stream);
    if (workspace.plan.source == Source::formula) return;
    shared.write_lists(call, stream);
    if (workspace.seen_by_first == nullptr) return;
    const RowLists& lists = workspace.lists;
    write_seen_by({.first = lists.first, .last = lists.last, .batch_stride = lists.capacity}, lists.counts,
                  call.seq_q, static_cast<int>(call.batch * (lists.per_head ? call.heads_q : 1)),
                  static_cast<int>(lists.key_capacity), workspace.seen_by_first, workspace.seen_by_last,
                  stream);
  }

  void forward(const AttentionCall& call) const {
    const Pattern pattern = Pattern::of(problem, workspace, call.pattern);
    const ForwardTile& tile = workspace.plan.tiles.forward;
    auto to = described<ForwardCall>(call, pattern, tile.rows(), tile.keys);
    to.order = order(pattern.queries, tile.rows(), problem.heads_q);
    to.order.sections = forward_sections(problem, *stream.device);
    to.rows = call.seq_q;
    to.sinks = call.sinks;
    to.output = call.output;
    to.output_is_f32 = call.output.dtype == DType::f32;
    to.lse = call.lse;
    // What 16 bits hold is never resumed from: there it is rows that have seen nothing or their sink.
    to.resume = call.resume && to.output_is_f32;
    if (problem.dtype_of_output() == DType::f32) to.row_sum = call.row_sum;
    to.visits = workspace.visits;
    zero_counters(workspace.counters, 1, stream);
    compiled().forward[workspace.plan.general](to, blocks(to.order), stream);
  }

  void pattern_statistics(const AttentionCall& call) const {
    if (open() && !problem.open_queries->first) return;
    if (workspace.output_gradient != nullptr && call.pattern == 0) {
      shared.narrow(call, output_gradient(call), call.output_gradient, problem.seq_q, problem.heads_q, 1,
                    false, stream);
    }
    BeforeCall to;
    to.output = call.output;
    to.output_is_f32 = call.output.dtype == DType::f32;
    to.output_gradient = output_gradient(call);
    to.queries = Pattern::of(problem, workspace, call.pattern).queries;
    to.lse = call.lse;
    to.lse_gradient = call.lse_gradient;
    to.lse_log2 = workspace.queries.lse_log2;
    to.minus_delta = workspace.queries.minus_delta;
    to.batch = static_cast<int>(call.batch);
    to.heads = static_cast<int>(call.heads_q);
    to.rows = call.seq_q;
    to.padded_places = static_cast<int>(workspace.queries.padded_places);
    to.head_dim = call.head_dim;
    compiled().before_backward(to, stream);
    if (open()) set_to_zero(workspace.queries.sums, workspace.queries.sums_bytes, stream);
  }

  void backward(const AttentionCall& call) const {
    const Pattern pattern = Pattern::of(problem, workspace, call.pattern);
    const BackwardTile& tile = workspace.plan.tiles.backward;
    auto to = described<BackwardCall>(call, pattern, tile.queries, tile.keys);
    to.seen_by = pattern.seen_by;
    to.batch = static_cast<int>(call.batch);
    to.parts = static_cast<int>(workspace.key_parts);
    to.order = order(pattern.keys, tile.keys, problem.heads_kv * to.parts);
    to.group_begin = static_cast<int>(call.group_begin);
    to.group_heads = static_cast<int>(call.group_end - call.group_begin);
    const Intervals& seen_by = pattern.seen_by;
    to.period = static_cast<int>(std::min<std::int64_t>(
        divide_up(std::int64_t{seen_by.end_shift} - seen_by.begin_shift - 1 + tile.keys, tile.queries),
        workspace.queries.padded_places / tile.queries));
    to.waves = plan_waves(problem, *stream.device, workspace.plan);
    to.order.sections = to.waves.heads > 0 ? std::max(to.order.heads / to.waves.heads, 1)
                                           : backward_sections(problem, *stream.device, to.order, to.seen,
                                                               to.period * tile.queries / tile.keys);
    to.query_sums = workspace.queries.sums;
    to.sums_are_open = open();
    if (workspace.plan.turns) to.turns = workspace.counters + Workspace::kNextTileBytes / 4;
    to.key_gradient = call.key_gradient;
    to.value_gradient = call.value_gradient;
    to.key_rows = write(call.key_gradient, call.add_key_gradients);
    to.visits = workspace.visits;
    if (!workspace.plan.turns && !workspace.plan.tiles.queries_apart() && !open()) {
      set_to_zero(workspace.queries.sums, workspace.queries.sums_bytes, stream);
    }
    zero_counters(workspace.counters, workspace.counter_bytes / 4, stream);
    compiled().backward[workspace.plan.general](to, blocks(to.order), stream);
    if (stream.libraries != nullptr && workspace.queries.sums_bytes > 0) {
      stream.libraries->mark_written({.first = workspace.queries.sums,
                                      .row_bytes = workspace.queries.sums_bytes,
                                      .stride_bytes = workspace.queries.sums_bytes},
                                     static_cast<cudaStream_t>(stream.native));
    }
    if (workspace.plan.tiles.queries_apart()) {
      if (call.group_end == call.group()) backward_queries(call, pattern);
    } else if (!open() || problem.open_queries->last) {
      round_query_sums(call, to);
    }
  }

  // Dense rows of the caller by the driver, which is faster.
  void zero(const AttentionCall& call, const TypedHeadsView& view, std::int64_t rows,
            std::int64_t heads) const {
    const std::int64_t width = heads * call.head_dim;
    const bool dense = (heads <= 1 || view.head_stride == call.head_dim) &&
                       (rows <= 1 || view.row_stride == width) &&
                       (call.batch <= 1 || view.batch_stride == rows * width);
    if (!dense || view.dtype == DType::f32) return shared.zero(call, view, rows, heads, stream);
    set_to_zero(view.data, call.batch * rows * width * size_bytes(view.dtype), stream);
  }

 private:
  [[nodiscard]] bool open() const { return problem.open_queries.has_value(); }
  // dO as products read it.
  [[nodiscard]] TypedHeadsView output_gradient(const AttentionCall& call) const {
    if (workspace.output_gradient == nullptr) return call.output_gradient;
    return heads_view(TensorView(workspace.output_gradient, problem.dtype,
                                 {problem.batch, problem.seq_q, problem.heads_q, problem.head_dim}));
  }
  [[nodiscard]] static Write write(const TypedHeadsView& gradient, bool add) {
    if (gradient.dtype != DType::f32) return Write::rounded;
    return add ? Write::added : Write::f32;
  }
  // Every pattern adds to what the ones before it left.
  [[nodiscard]] Write write_query_rows(const AttentionCall& call) const {
    const bool added = problem.add_gradients && !open();
    return write(call.query_gradient, added || problem.mask.patterns_per_head() > 1);
  }

  // dQ of every head, apart.
  void backward_queries(const AttentionCall& call, const Pattern& pattern) const {
    const QueriesTile& tile = workspace.plan.tiles.queries;
    auto to = described<QueriesCall>(call, pattern, tile.queries, tile.keys);
    to.order = order(pattern.queries, tile.queries, problem.heads_q);
    to.order.sections = forward_sections(problem, *stream.device);
    to.query_gradient = call.query_gradient;
    to.rows = write_query_rows(call);
    to.visits = workspace.query_visits;
    zero_counters(workspace.counters, 1, stream);
    compiled().backward_queries[workspace.plan.general](to, blocks(to.order), stream);
  }

  // dQ from the sums that backward leaves.
  void round_query_sums(const AttentionCall& call, const BackwardCall& from) const {
    AfterCall to;
    to.query_sums = from.query_sums;
    to.sums_are_open = from.sums_are_open;
    to.queries = from.queries;
    to.seen = from.seen;
    to.query_gradient = call.query_gradient;
    to.rows = write_query_rows(call);
    to.batch = static_cast<int>(call.batch);
    to.heads = from.heads_q;
    to.group_begin = from.group_begin;
    to.group_heads = from.group_heads;
    to.group = from.group;
    to.query_tiles =
        static_cast<int>(workspace.queries.padded_places / workspace.plan.tiles.backward.queries);
    to.head_dim = from.head_dim;
    to.scale = from.scale;
    to.visits = from.visits;
    compiled().after_backward[workspace.plan.general](to, stream);
  }

  [[nodiscard]] const Kernels& compiled() const {
    return kernels(problem.dtype, workspace.plan.tiles.head_dim);
  }
  // Listed rows are copied one by one.
  [[nodiscard]] CUtensorMap query_map(const TypedHeadsView& view, const Pattern& pattern, int rows) const {
    return tensor_map(view, {problem.batch, problem.seq_q, problem.heads_q, problem.head_dim},
                      pattern.queries.rate, workspace.lists.per_head ? 1 : rows);
  }
  [[nodiscard]] CUtensorMap key_map(const TypedHeadsView& view, const Pattern& pattern, int rows) const {
    return tensor_map(view, {problem.batch, problem.seq_k, problem.heads_kv, problem.head_dim},
                      pattern.keys.rate, workspace.lists.per_head ? 1 : rows);
  }
  [[nodiscard]] TileOrder order(const Places& places, int tile, std::int64_t heads) const {
    const int most = places.rows == nullptr ? places.count : places.capacity;
    return {.tiles_per_head = static_cast<int>(divide_up(most, tile)),
            .heads = static_cast<int>(problem.batch * heads),
            .sections = 1};
  }
  [[nodiscard]] int blocks(const TileOrder& order) const {
    return std::min(stream.device->cores, order.tiles_per_head * order.heads);
  }
  // What the calls that multiply have in common.
  template <class Call>
  [[nodiscard]] Call described(const AttentionCall& call, const Pattern& pattern, int queries,
                               int keys) const {
    Call to;
    to.query = query_map(call.query, pattern, queries);
    to.key = key_map(call.key, pattern, keys);
    to.value = key_map(call.value, pattern, keys);
    to.queries = pattern.queries;
    to.keys = pattern.keys;
    to.seen = pattern.seen;
    to.heads_q = static_cast<int>(call.heads_q);
    to.group = static_cast<int>(call.group());
    to.head_dim = call.head_dim;
    to.scale = call.scale;
    to.softcap = call.softcap;
    to.next_tile = workspace.counters;
    if constexpr (std::is_base_of_v<GradientsCall, Call>) {
      to.output_gradient = query_map(output_gradient(call), pattern, queries);
      to.lse = workspace.queries.lse_log2;
      to.minus_delta = workspace.queries.minus_delta;
      to.padded_places = static_cast<int>(workspace.queries.padded_places);
    }
    return to;
  }
};

}  // namespace

void forward(const AttentionProblem& problem, const AttentionForward& views, const TensorView& workspace,
             const Stream& stream) {
  check_addresses({&views.query, &views.key, &views.value, &views.output});
  run_forward(problem, views,
              Launches{problem, workspace_in<Workspace>(workspace, problem, Pass::forward), shared_launches(),
                       stream});
}

void backward(const AttentionProblem& problem, const AttentionBackward& views, const TensorView& workspace,
              const Stream& stream) {
  check_addresses({&views.forward.query, &views.forward.key, &views.forward.value, &views.forward.output,
                   &views.output_gradient, &views.query_gradient, &views.key_gradient, &views.value_gradient,
                   &views.open});
  run_backward(problem, views,
               Launches{problem,
                        workspace_in<Workspace>(workspace, problem, Pass::backward,
                                                static_cast<std::byte*>(views.open.raw())),
                        shared_launches(), stream});
}

}  // namespace headroom::cuda::sm90
