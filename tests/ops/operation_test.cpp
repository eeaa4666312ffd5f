#include "ops/operation.h"

#include <gtest/gtest.h>

#include "core/temporary_folder.h"
#include "headroom/cpu.h"
#include "headroom/ops.h"
#include "memory/late_backend.h"

namespace headroom {
namespace {

DeviceDescription gpu() {
  DeviceDescription device;
  device.kind = DeviceKind::cuda;
  device.name = "a GPU";
  device.cores = 132;
  device.compute_major = 9;
  return device;
}

struct Call {
  TensorView view;
};
constexpr std::int64_t kWorkspace = 100;
constexpr OperationRow<Call> kRow{"cpu", on_cpus,
                                  [](const Call& call, TensorView workspace, const Stream&) {
                                    call.view.data<float>()[0] = static_cast<float>(workspace.bytes());
                                  },
                                  [](const Call&, const DeviceDescription&) { return kWorkspace; }};
constexpr OperationRow<Call> kCpuAlone[] = {kRow};
constexpr OperationRow<Call> kAssumed[] = {
    kRow,
    {"cuda", on_cuda_gpus, nullptr, [](const Call&, const DeviceDescription&) { return 2 * kWorkspace; }}};

// One phase that runs the operation once.
void run_once(Context& context, std::span<const OperationRow<Call>> rows, float* result = nullptr) {
  context.phase(Phase::step, [&] {
    const Tensor tensor = context.allocate({.name = "tensor", .shape = {1}});
    run_operation<Call>(context, rows, {tensor}, {.kernel = "operation"});
    context.run([&](const Stream&) {
      if (result != nullptr) *result = tensor.data<float>()[0];
    });
  });
}

TEST(Operation, ADeviceWithoutARowIsRefusedInRehearsal) {
  Context context(gpu());
  EXPECT_EQ(error_of([&] { run_once(context, kCpuAlone); }),
            "no implementation of operation serves this problem: cpu: runs on CPUs");
}

TEST(Operation, TheRowOfTheDeviceRunsInItsOwnWorkspace) {
  CpuBackend backend(1);
  Context rehearsal(backend.description());
  run_once(rehearsal, kAssumed);
  Context context(backend, make_layout(std::move(rehearsal).take_ledger()));
  float result = 0;
  run_once(context, kAssumed, &result);
  EXPECT_EQ(result, kWorkspace);
  const Work& work = context.work(Phase::step)[0].work;
  EXPECT_EQ(work.row, "cpu");
  EXPECT_FALSE(work.assumed);
  EXPECT_EQ(work.workspace_bytes, kWorkspace);
}

TEST(Operation, ARowWithoutAKernelIsRehearsedAndNotRun) {
  Context rehearsal(gpu());
  run_once(rehearsal, kAssumed);
  const Work work = rehearsal.work(Phase::step)[0].work;
  EXPECT_EQ(work.row, "cuda");
  EXPECT_TRUE(work.assumed);
  EXPECT_EQ(work.workspace_bytes, 2 * kWorkspace);
  EXPECT_EQ(rehearsal.ledger().usage(Space::device).peak_bytes, 4 + 2 * kWorkspace);

  LateBackend backend(gpu());
  Context context(backend, make_layout(std::move(rehearsal).take_ledger()));
  EXPECT_EQ(error_of([&] { run_once(context, kAssumed); }),
            "operation has no kernel for a GPU yet: its bytes can be planned, it cannot run");
}

TEST(Operation, AProductOfTwoDtypesIsRefusedInRehearsalOfAGpu) {
  Context context(gpu());
  EXPECT_EQ(
      error_of([&] {
        context.phase(Phase::step, [&] {
          const Tensor a = context.allocate({.name = "a", .shape = {4, 4}});
          const Tensor b = context.allocate({.name = "b", .dtype = DType::bf16, .shape = {4, 4}});
          matmul(context, a, a, a);
          matmul(context, b, b, a);
          matmul(context, a, b, a);
        });
      }),
      "no implementation of product serves this problem: cpu: runs on CPUs; cublaslt: multiplies matrices of "
      "one dtype, into f32 or that dtype");
}

// Every operation of a step has a row for GPUs, so that a step can be planned there.
TEST(Operation, EveryOneHasARowForGpus) {
  Context context(gpu());
  context.phase(Phase::step, [&] {
    const auto take = [&](const Shape& shape, DType dtype = DType::bf16) {
      return context.allocate({.name = "tensor", .dtype = dtype, .shape = shape});
    };
    const Tensor a = take({4, 8}), b = take({4, 8}), c = take({4, 8}), square = take({8, 8});
    const Tensor rows = take({4}, DType::f32), wide = take({8}, DType::f32), one = take({1}, DType::f32);
    const Tensor flag = take({1}, DType::i32), ids = take({4}, DType::i32), table = take({8, 8}, DType::f32);
    const Tensor flat = take({32}, DType::f32), first = take({32}, DType::f32),
                 second = take({32}, DType::f32);
    const Tensor heads = take({4, 1, 8});
    const TensorView weight = wide;
    matmul(context, a, square, b);
    mlp_forward(context, {.x = a, .weights = {square, square, square}, .y = b, .gate_up = {}}, 2);
    rms_norm_forward(context, {.x = a, .weight = weight, .y = b, .rstd = rows}, 1e-6F);
    rms_norm_backward(
        context,
        {.x = a, .weight = weight, .rstd = rows, .y_gradient = b, .x_gradient = c, .weight_gradient = wide},
        Store::add);
    rope(context, heads, ids, rope_frequencies({}, 8), Pass::forward);
    swiglu_forward(context, a, b, c);
    embedding_forward(context, square, ids, a);
    embedding_backward(context, ids, a, table);
    add(context, a, b, c);
    fill(context, a, 1);
    zero(context, a);
    convert(context, a, b);
    random_fill(context, flat, Random(1), 0, 1);
    sum_of_squares(context, flat, one, Store::overwrite);
    clip_factor(context, {.sum_of_squares = one, .norm = one, .factor = one, .finite = flag}, {});
    adamw(context,
          {.master = flat, .gradient = flat, .first = first, .second = second, .weight = flat, .factor = one},
          {});
  });
  for (const WorkRecord& record : context.work(Phase::step)) {
    const bool product = record.work.kernel == "product" || record.work.kernel == "mlp";
    EXPECT_EQ(record.work.row, product ? "cublaslt" : "cuda") << record.work.kernel;
  }
  EXPECT_EQ(context.work(Phase::step).size(), 16);
}

}  // namespace
}  // namespace headroom
