#include "attention/cuda/intervals/rows.h"

#include "attention/implementations.h"
#include "headroom/core/checked.h"

namespace headroom {
namespace cuda {
namespace {

struct IntervalLaunches {
  static constexpr bool kAddsQueryGradient = true;

  const AttentionProblem& problem;
  IntervalWorkspace workspace;
  const SharedLaunches& shared;
  const IntervalKernels& kernels;
  const Stream& stream;

  void write_lists(const AttentionCall& call) const {
    shared.write_lists(call, stream);
    if (call.lists.seen_by != nullptr) shared.write_seen_by(call, stream);
  }
  void forward(const AttentionCall& call) const { kernels.forward(call, stream); }
  // One softmax over all patterns has the same statistics in each.
  void pattern_statistics(const AttentionCall& call) const {
    if (problem.mask.detach_mixing) shared.row_statistics(call, stream);
  }
  void backward(AttentionCall call) const {
    call.next_share = workspace.next_share;
    call.turns = workspace.turns;
    call.turns_per_head = workspace.turns_per_head;
    shared.zero_counters(call, stream);
    kernels.backward(call, stream);
  }
  void zero(const AttentionCall& call, const TypedHeadsView& view, std::int64_t rows,
            std::int64_t heads) const {
    shared.zero(call, view, rows, heads, stream);
  }
};

}  // namespace

std::int64_t block_shared_bytes(const DeviceDescription& device) {
  constexpr std::int64_t kKiB = 1024;
  const int capability = device.compute_major * 10 + device.compute_minor;
  if (capability < 70) return 48 * kKiB;
  if (capability < 75) return 96 * kKiB;
  if (capability < 80) return 64 * kKiB;
  if (capability == 80 || capability == 87) return 163 * kKiB;
  if (capability < 90 || capability >= 120) return 99 * kKiB;
  return 227 * kKiB;
}

IntervalWorkspace::IntervalWorkspace(const AttentionProblem& problem, Pass pass, std::byte* base) {
  Pieces pieces(base);
  take(problem, pass, {}, pieces);
  lists.key_tiles = divide_up(lists.key_capacity, kTileKeys);
  if (pass == Pass::backward) {
    const std::int64_t count = problem.batch * (lists.per_head ? problem.heads_q : 1);
    lists.seen_by = pieces.take<Range>(checked_multiply(count, lists.key_tiles));
    next_share = pieces.take<std::int32_t>(1);
  }
  if (pass == Pass::backward && problem.deterministic) {
    turns_per_head =
        ceil_div(problem.head_dim, kGradientColumns) *
        QueryTiling::of(problem.mask.block_rows, problem.seq_q, kLeastTileRows).count(lists.capacity);
    turns = pieces.take<std::int32_t>(checked_multiply(problem.batch * problem.heads_q, turns_per_head));
  }
  bytes = pieces.bytes();
}

void forward_on_intervals(const AttentionProblem& problem, const AttentionForward& views,
                          const TensorView& workspace, const SharedLaunches& shared,
                          const IntervalKernels& kernels, const Stream& stream) {
  run_forward(problem, views,
              IntervalLaunches{problem, workspace_in<IntervalWorkspace>(workspace, problem, Pass::forward),
                               shared, kernels, stream});
}

void backward_on_intervals(const AttentionProblem& problem, const AttentionBackward& views,
                           const TensorView& workspace, const SharedLaunches& shared,
                           const IntervalKernels& kernels, const Stream& stream) {
  run_backward(problem, views,
               IntervalLaunches{problem, workspace_in<IntervalWorkspace>(workspace, problem, Pass::backward),
                                shared, kernels, stream});
}

}  // namespace cuda

namespace {

Support needs_capability(std::string_view needed, const DeviceDescription& device) {
  return Support::no(fmt::format("needs compute capability {}, this is {}.{}", needed, device.compute_major,
                                 device.compute_minor));
}

Support supports_portable(const AttentionProblem& problem, const DeviceDescription& device) {
  if (device.kind == DeviceKind::cuda && device.compute_major < 6) return needs_capability("6.0", device);
  return cuda::supports_on_gpu(problem, device);
}

Support supports_tf32(const AttentionProblem& problem, const DeviceDescription& device) {
  if (device.kind != DeviceKind::cuda) return Support::no("runs on CUDA GPUs only");
  if (device.compute_major < 8) return needs_capability("8.0", device);
  if (problem.dtype != DType::f32) return Support::no(fmt::format("takes f32, not {}", name(problem.dtype)));
  constexpr std::int64_t kWideTiles = 160 << 10;  // forward of head_dim 256 holds 126 KiB
  if (problem.head_dim > 128 && cuda::block_shared_bytes(device) < kWideTiles) {
    return Support::no(fmt::format("head_dim {} needs more shared memory than compute capability {}.{} has",
                                   problem.head_dim, device.compute_major, device.compute_minor));
  }
  return cuda::supports_on_gpu(problem, device);
}

Support supports_bf16x3(const AttentionProblem& problem, const DeviceDescription& device) {
  if (Support support = cuda::supports_on_gpu(problem, device); !support) return support;
  if (device.compute_major != 9 || device.compute_minor != 0) return needs_capability("9.0", device);
  if (problem.dtype != DType::f32) return Support::no(fmt::format("takes f32, not {}", name(problem.dtype)));
  // Smaller heads would be padded to 64, where tf32x3 is faster; three parts of larger ones do not fit shared
  // memory.
  constexpr std::int64_t kLeast = 40;
  constexpr std::int64_t kMost = 128;
  if (problem.head_dim < kLeast || problem.head_dim > kMost) {
    return Support::no(fmt::format("takes head_dim {} to {}, not {}", kLeast, kMost, problem.head_dim));
  }
  return Support::yes();
}

template <const cuda::IntervalKernels& (*Kernels)()>
constexpr AttentionImplementation interval_row(std::string_view name,
                                               Support (*supports)(const AttentionProblem&,
                                                                   const DeviceDescription&)) {
  return {.name = name,
          .supports = supports,
          .workspace_bytes = [](const AttentionProblem& problem, const DeviceDescription&,
                                Pass pass) { return cuda::IntervalWorkspace(problem, pass, nullptr).bytes; },
          .saved_bytes = [](const AttentionProblem&) -> std::int64_t { return 0; },
          .forward =
              [](const AttentionProblem& problem, const AttentionForward& views, TensorView workspace,
                 const Stream& stream) {
                cuda::forward_on_intervals(problem, views, workspace, cuda::shared_launches(), Kernels(),
                                           stream);
              },
          .backward =
              [](const AttentionProblem& problem, const AttentionBackward& views, TensorView workspace,
                 const Stream& stream) {
                cuda::backward_on_intervals(problem, views, workspace, cuda::shared_launches(), Kernels(),
                                            stream);
              }};
}

}  // namespace

const AttentionImplementation& portable_attention() {
  static constexpr AttentionImplementation kRow =
      interval_row<cuda::portable_kernels>("portable", supports_portable);
  return kRow;
}

const AttentionImplementation& tf32x3_attention() {
  static constexpr AttentionImplementation kRow = interval_row<cuda::tf32x3_kernels>("tf32x3", supports_tf32);
  return kRow;
}

const AttentionImplementation& tf32_attention() {
  static constexpr AttentionImplementation kRow = [] {
    AttentionImplementation row = interval_row<cuda::tf32_kernels>("tf32", supports_tf32);
    row.only_when_named = true;
    return row;
  }();
  return kRow;
}

const AttentionImplementation& bf16x3_attention() {
  static constexpr AttentionImplementation kRow =
      interval_row<cuda::bf16x3_kernels>("bf16x3", supports_bf16x3);
  return kRow;
}

}  // namespace headroom
