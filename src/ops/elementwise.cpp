#include "headroom/ops/elementwise.h"

#include <cstring>

#include "ops/arguments.h"
#include "ops/cpu/ops.h"
#include "ops/cpu/spans.h"
#include "ops/cuda/ops.h"
#include "ops/operation.h"
#include "ops/work.h"

namespace headroom {
namespace {

struct AddCall {
  TensorView a, b, y;
};
constexpr OperationRow<AddCall> kAdd[] = {
    {"cpu", on_cpus,
     [](const AddCall& call, TensorView, const Stream& stream) { cpu::add(call.a, call.b, call.y, stream); }},
    {"cuda", on_cuda_gpus, [](const AddCall& call, TensorView, const Stream& stream) {
       cuda::add(call.a, call.b, call.y, stream);
     }}};

struct FillCall {
  TensorView view;
  float value;
};
constexpr OperationRow<FillCall> kFill[] = {
    {"cpu", on_cpus,
     [](const FillCall& call, TensorView, const Stream& stream) {
       cpu::fill(call.view, call.value, stream);
     }},
    {"cuda", on_cuda_gpus, [](const FillCall& call, TensorView, const Stream& stream) {
       cuda::fill(call.view, call.value, stream);
     }}};

struct ZeroCall {
  TensorView view;
};
constexpr OperationRow<ZeroCall> kZero[] = {
    {"cpu", on_cpus,
     [](const ZeroCall& call, TensorView, const Stream& stream) { cpu::zero(call.view, stream); }},
    {"cuda", on_cuda_gpus,
     [](const ZeroCall& call, TensorView, const Stream& stream) { cuda::zero(call.view, stream); }}};

struct ConvertCall {
  TensorView from, to;
};
constexpr OperationRow<ConvertCall> kConvert[] = {
    {"cpu", on_cpus,
     [](const ConvertCall& call, TensorView, const Stream& stream) {
       cpu::convert(call.from, call.to, stream);
     }},
    {"cuda", on_cuda_gpus, [](const ConvertCall& call, TensorView, const Stream& stream) {
       cuda::convert(call.from, call.to, stream);
     }}};

}  // namespace

void add(Context& context, const TensorView& a, const TensorView& b, const TensorView& y) {
  const Arguments arguments("add");
  arguments.floating(a, "a");
  arguments.dtype(b, a.dtype(), "b");
  arguments.shape(b, a.shape(), "b");
  arguments.dtype(y, a.dtype(), "y");
  arguments.shape(y, a.shape(), "y");
  if (!a.is_dense() || !b.is_dense() || !y.is_dense()) {
    arguments.rank(a, 2, 2, "a, which is not dense or is added to what is not,");
    arguments.rows(a, "a");
    arguments.rows(b, "b");
    arguments.written_rows(y, "y");
  }
  run_operation<AddCall>(context, kAdd, {a, b, y}, moves("add", {a, b, y}));
}

void fill(Context& context, const TensorView& view, float value) {
  const Arguments arguments("fill");
  arguments.floating(view, "the view");
  arguments.dense(view, "the view");
  run_operation<FillCall>(context, kFill, {view, value}, moves("fill", {view}));
}

void zero(Context& context, const TensorView& view) {
  if (const Arguments arguments("zero"); !view.is_dense()) {
    arguments.floating(view, "the view, which is not dense,");
    arguments.rank(view, 2, 2, "the view, which is not dense,");
    arguments.written_rows(view, "the view");
  }
  run_operation<ZeroCall>(context, kZero, {view}, moves("zero", {view}));
}

void convert(Context& context, const TensorView& from, const TensorView& to) {
  const Arguments arguments("convert");
  arguments.floating(from, "from");
  arguments.floating(to, "to");
  arguments.shape(to, from.shape(), "to");
  if (!from.is_dense() || !to.is_dense()) {
    arguments.rank(from, 2, 2, "from, which is not dense or is converted to what is not,");
    arguments.rows(from, "from");
    arguments.written_rows(to, "to");
  }
  run_operation<ConvertCall>(context, kConvert, {from, to}, moves("convert", {from, to}));
}

namespace cpu {

void add(const TensorView& a, const TensorView& b, const TensorView& y, const Stream& stream) {
  const OpKernels& kernels = op_kernels(stream.device->simd);
  for_each_span(std::array{a, b, y}, stream, [&](const std::array<void*, 3>& pointers, std::int64_t count) {
    kernels.add(a.dtype(), pointers[0], pointers[1], pointers[2], count);
  });
}

void fill(const TensorView& view, float value, const Stream& stream) {
  const OpKernels& kernels = op_kernels(stream.device->simd);
  for_each_span(std::array{view}, stream, [&](const std::array<void*, 1>& pointers, std::int64_t count) {
    kernels.fill(view.dtype(), pointers[0], value, count);
  });
}

void zero(const TensorView& view, const Stream& stream) {
  for_each_span(std::array{view}, stream, [&](const std::array<void*, 1>& pointers, std::int64_t count) {
    std::memset(pointers[0], 0, static_cast<std::size_t>(count * size_bytes(view.dtype())));
  });
}

void convert(const TensorView& from, const TensorView& to, const Stream& stream) {
  const OpKernels& kernels = op_kernels(stream.device->simd);
  for_each_span(std::array{from, to}, stream, [&](const std::array<void*, 2>& pointers, std::int64_t count) {
    kernels.convert(from.dtype(), pointers[0], to.dtype(), pointers[1], count);
  });
}

}  // namespace cpu
}  // namespace headroom
