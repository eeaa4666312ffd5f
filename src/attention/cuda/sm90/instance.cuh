// Launches of one dtype and head size; included by the generated instance files.
#pragma once

#include "attention/cuda/sm90/backward.cuh"
#include "attention/cuda/sm90/backward_queries.cuh"
#include "attention/cuda/sm90/backward_wide.cuh"
#include "attention/cuda/sm90/forward.cuh"
#include "attention/cuda/sm90/kernels.h"
#include "cuda/check.h"

namespace headroom::sm90 {

template <class Call>
void launch(const char* name, void (*kernel)(Call), const Call& call, int blocks, int threads,
            std::size_t shared_bytes, cudaStream_t stream) {
  check_cuda(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shared_bytes)),
      name);
  kernel<<<blocks, threads, shared_bytes, stream>>>(call);
  check_launch(name);
}

template <class Shape>
void launch_forward(const ForwardCall& call, int blocks, cudaStream_t stream) {
  launch("forward_kernel", forward_kernel<Shape>, call, blocks, Shape::kThreads, sizeof(ForwardShared<Shape>),
         stream);
}

template <class Element, int kHeadDim, bool kGeneral>
void launch_backward(const BackwardCall& call, int blocks, cudaStream_t stream) {
  if constexpr (kHeadDim <= 128) {
    using Shape = BackwardShape<Element, kHeadDim, kGeneral>;
    launch("backward_kernel", backward_kernel<Shape>, call, blocks, Shape::kThreads,
           sizeof(BackwardShared<Shape>), stream);
  } else {
    using Shape = WideShape<Element, kHeadDim, kGeneral>;
    launch("wide_backward_kernel", wide_backward_kernel<Shape>, call, blocks, Shape::kThreads,
           sizeof(WideShared<Shape>), stream);
  }
}

template <class Element, int kHeadDim, bool kGeneral>
void launch_after(const AfterCall& call, cudaStream_t stream) {
  const int blocks = call.query_tiles * call.batch * (call.heads / call.group) * call.group_heads;
  launch("after_backward_kernel", after_backward_kernel<BackwardShape<Element, kHeadDim, kGeneral>>, call,
         blocks, 2 * kWarpgroup, 0, stream);
}

template <class Element, int kHeadDim>
constexpr Kernels make_kernels(DType dtype) {
  Kernels kernels{.dtype = dtype,
                  .head_dim = kHeadDim,
                  .forward =
                      [](const ForwardCall& call, int blocks, cudaStream_t stream) {
                        if (call.general()) {
                          launch_forward<ForwardShape<Element, kHeadDim, true>>(call, blocks, stream);
                        } else {
                          launch_forward<ForwardShape<Element, kHeadDim, false>>(call, blocks, stream);
                        }
                      },
                  .before_backward = nullptr,
                  .backward = nullptr,
                  .backward_queries = nullptr,
                  .after_backward = nullptr};
  if constexpr (has_backward(kHeadDim)) {
    kernels.before_backward = [](const BeforeCall& call, cudaStream_t stream) {
      constexpr int kThreads = 256;
      const std::int64_t warps = static_cast<std::int64_t>(call.batch) * call.heads * call.padded_places;
      launch("before_backward_kernel", before_backward_kernel<Element>, call,
             static_cast<int>((warps * 32 + kThreads - 1) / kThreads), kThreads, 0, stream);
    };
    kernels.backward = [](const BackwardCall& call, int blocks, cudaStream_t stream) {
      if (call.general()) {
        launch_backward<Element, kHeadDim, true>(call, blocks, stream);
      } else {
        launch_backward<Element, kHeadDim, false>(call, blocks, stream);
      }
    };
    if constexpr (queries_apart(kHeadDim)) {
      kernels.backward_queries = [](const QueriesCall& call, int blocks, cudaStream_t stream) {
        using Shape = QueriesShape<Element, kHeadDim>;
        launch("queries_backward_kernel", queries_backward_kernel<Shape>, call, blocks, Shape::kThreads,
               sizeof(QueriesShared<Shape>), stream);
      };
    } else {
      kernels.after_backward = [](const AfterCall& call, bool general, cudaStream_t stream) {
        if (general) {
          launch_after<Element, kHeadDim, true>(call, stream);
        } else {
          launch_after<Element, kHeadDim, false>(call, stream);
        }
      };
    }
  }
  return kernels;
}

}  // namespace headroom::sm90
