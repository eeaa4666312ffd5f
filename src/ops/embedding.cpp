#include "headroom/ops/embedding.h"

#include <cstring>

#include "ops/arguments.h"
#include "ops/cpu/ops.h"
#include "ops/cpu/spans.h"
#include "ops/cuda/ops.h"
#include "ops/cuda/token_sort.h"
#include "ops/operation.h"
#include "ops/work.h"

namespace headroom {
namespace {

// Backward is cut into columns and into groups of ids: no two items write one element, and each takes its
// tokens in order. Finding them costs every item a walk over the ids, so columns are wide.
constexpr std::int64_t kColumns = 512;
constexpr std::int32_t kGroups = 16;

void check_rows(const Arguments& arguments, const TensorView& table, const TensorView& ids,
                const TensorView& x, std::string_view table_name, std::string_view x_name) {
  arguments.rank(table, 2, 2, table_name);
  arguments.rows(table, table_name);
  arguments.rank(ids, 1, 1, "ids");
  arguments.vector(ids, DType::i32, {ids.extent(0)}, "ids");
  arguments.floating(x, x_name);
  arguments.shape(x, {ids.extent(0), table.extent(1)}, x_name);
  arguments.rows(x, x_name);
}

struct ForwardCall {
  TensorView table, ids, x;
};
constexpr OperationRow<ForwardCall> kForward[] = {
    {"cpu", on_cpus,
     [](const ForwardCall& call, TensorView, const Stream& stream) {
       cpu::check_ids(call.ids, call.table.extent(0));
       cpu::embedding_forward(call.table, call.ids, call.x, stream);
     }},
    {"cuda", on_cuda_gpus, [](const ForwardCall& call, TensorView, const Stream& stream) {
       cuda::embedding_forward(call.table, call.ids, call.x, stream);
     }}};

struct BackwardCall {
  TensorView ids, x_gradient, table_gradient;
  std::int32_t pad_token;  // -1: none
};
// The table in f32, where it is not: tokens are added to it one by one.
std::int64_t cpu_sums_bytes(const BackwardCall& call, const DeviceDescription&) {
  if (call.table_gradient.dtype() == DType::f32) return 0;
  return dense_bytes(DType::f32, call.table_gradient.shape());
}
constexpr OperationRow<BackwardCall> kBackward[] = {
    {"cpu", on_cpus,
     [](const BackwardCall& call, TensorView workspace, const Stream& stream) {
       cpu::check_ids(call.ids, call.table_gradient.extent(0));
       cpu::embedding_backward(call.ids, call.x_gradient, call.table_gradient, call.pad_token, workspace,
                               stream);
     },
     cpu_sums_bytes},
    {"cuda", on_cuda_gpus,
     [](const BackwardCall& call, TensorView workspace, const Stream& stream) {
       cuda::embedding_backward(call.ids, call.x_gradient, call.table_gradient, call.pad_token, workspace,
                                stream);
     },
     [](const BackwardCall& call, const DeviceDescription&) {
       return cuda::TokenSort::bytes(call.ids.elements());
     }}};

}  // namespace

void embedding_forward(Context& context, const TensorView& table, const TensorView& ids,
                       const TensorView& x) {
  const Arguments arguments("embedding");
  check_rows(arguments, table, ids, x, "table", "x");
  arguments.dtype(x, table.dtype(), "x");
  arguments.written_rows(x, "x");
  run_operation<ForwardCall>(context, kForward, {table, ids, x}, moves("embedding", {x, x}));
}

void embedding_backward(Context& context, const TensorView& ids, const TensorView& x_gradient,
                        const TensorView& table_gradient, std::optional<std::int64_t> pad_token) {
  const Arguments arguments("embedding");
  check_rows(arguments, table_gradient, ids, x_gradient, "table_gradient", "x_gradient");
  if (table_gradient.dtype() != DType::f32) {
    arguments.dtype(table_gradient, x_gradient.dtype(), "table_gradient");
  }
  arguments.written_rows(table_gradient, "table_gradient");
  check(!pad_token || (*pad_token >= 0 && *pad_token < table_gradient.extent(0)),
        "embedding: pad_token is {}; the vocabulary has {} entries, from 0", pad_token.value_or(0),
        table_gradient.extent(0));
  run_operation<BackwardCall>(
      context, kBackward,
      {ids, x_gradient, table_gradient, static_cast<std::int32_t>(pad_token.value_or(-1))},
      moves("embedding backward", {x_gradient, x_gradient, x_gradient}));
}

namespace cpu {

void check_ids(const TensorView& ids, std::int64_t vocabulary) {
  const auto* id = ids.data<std::int32_t>();
  for (std::int64_t i = 0; i < ids.elements(); ++i) {
    check(id[i] >= 0 && id[i] < vocabulary, "token {} has id {}; the vocabulary has {} entries, from 0", i,
          id[i], vocabulary);
  }
}

void embedding_forward(const TensorView& table, const TensorView& ids, const TensorView& x,
                       const Stream& stream) {
  const auto* id = ids.data<std::int32_t>();
  const std::int64_t dim = table.extent(1);
  const auto row_bytes = static_cast<std::size_t>(dim * size_bytes(table.dtype()));
  for_row_chunks(ids.elements(), dim, stream, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      std::memcpy(at(x, t * x.stride(0)), at(table, id[t] * table.stride(0)), row_bytes);
    }
  });
}

void embedding_backward(const TensorView& ids, const TensorView& x_gradient, const TensorView& table_gradient,
                        std::int32_t pad_token, const TensorView& workspace, const Stream& stream) {
  const OpKernels& kernels = op_kernels(stream.device->simd);
  const std::int64_t dim = x_gradient.extent(1);
  const bool narrow = table_gradient.dtype() != DType::f32;
  const TensorView sums =
      narrow ? TensorView(workspace.raw(), DType::f32, table_gradient.shape()) : table_gradient;
  if (narrow) convert(table_gradient, sums, stream);
  parallel_for(stream, divide_up(dim, kColumns) * kGroups, [&](std::int64_t item) {
    const std::int64_t column = item / kGroups * kColumns;
    kernels.scatter_add({.x = rows_of(x_gradient),
                         .ids = ids.data<std::int32_t>(),
                         .tokens = ids.elements(),
                         .group = static_cast<std::int32_t>(item % kGroups),
                         .groups = kGroups,
                         .pad_token = pad_token,
                         .column = column,
                         .columns = std::min(kColumns, dim - column),
                         .table = sums.data<float>(),
                         .table_stride = sums.stride(0)});
  });
  if (narrow) convert(sums, table_gradient, stream);
}

}  // namespace cpu
}  // namespace headroom
