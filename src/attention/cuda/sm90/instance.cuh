// Launches of one dtype and head size; included by the generated instance files.
#pragma once

#include "attention/cuda/sm90/backward.cuh"
#include "attention/cuda/sm90/backward_queries.cuh"
#include "attention/cuda/sm90/backward_wide.cuh"
#include "attention/cuda/sm90/forward.cuh"
#include "attention/cuda/sm90/kernels.h"
#include "cuda/launch.h"

namespace headroom::cuda::sm90 {

// Launches a kernel that takes a block's shared memory for itself.
template <class Shape, class Shared, class Call>
void launch_block(const char* name, void (*kernel)(Call), const Call& call, int blocks,
                  const Stream& stream) {
  static_assert(sizeof(Shared) <= 227 << 10, "a block of compute capability 9.0 has no more");
  launch<Begin::early>(name, kernel, blocks, Shape::kThreads, sizeof(Shared), stream, call);
}

template <class Shape>
void launch_forward(const ForwardCall& call, int blocks, const Stream& stream) {
  launch_block<Shape, ForwardShared<Shape>>("forward_kernel", forward_kernel<Shape>, call, blocks, stream);
}

template <class Element, int kHeadDim>
void launch_before(const BeforeCall& call, const Stream& stream) {
  constexpr int kThreads = before_threads(kHeadDim);
  const std::int64_t places = static_cast<std::int64_t>(call.batch) * call.heads * call.padded_places;
  constexpr std::int64_t kMost = (std::int64_t{1} << 32) - kRowThreads;  // a block more has 32 bits too
  check(places <= kMost, "attention backward has {} rows over all heads, padding included; it takes up to {}",
        places, kMost);
  launch<Begin::early>("before_backward_kernel", before_backward_kernel<Element, kThreads>,
                       ceil_div(places * kThreads, kRowThreads), kRowThreads, 0, stream, call);
}

template <class Element, int kHeadDim, bool kGeneral>
void launch_backward(const BackwardCall& call, int blocks, const Stream& stream) {
  if constexpr (head_tiles(kHeadDim, kGeneral).queries_apart()) {
    using Shape = WideShape<Element, kHeadDim, kGeneral>;
    launch_block<Shape, WideShared<Shape>>("wide_backward_kernel", wide_backward_kernel<Shape>, call, blocks,
                                           stream);
  } else {
    using Shape = BackwardShape<Element, kHeadDim, kGeneral>;
    launch_block<Shape, BackwardShared<Shape>>("backward_kernel", backward_kernel<Shape>, call, blocks,
                                               stream);
  }
}

template <class Shape>
void launch_queries(const QueriesCall& call, int blocks, const Stream& stream) {
  launch_block<Shape, QueriesShared<Shape>>("queries_backward_kernel", queries_backward_kernel<Shape>, call,
                                            blocks, stream);
}

template <class Shape>
void launch_after(const AfterCall& call, const Stream& stream) {
  const int blocks = call.query_tiles * call.batch * (call.heads / call.group) * call.group_heads;
  launch<Begin::early>("after_backward_kernel", after_backward_kernel<Shape>, blocks, 2 * Shape::kQueries, 0,
                       stream, call);
}

template <class Element, int kHeadDim>
constexpr Kernels make_kernels(DType dtype) {
  Kernels kernels{
      .dtype = dtype,
      .head_dim = kHeadDim,
      .forward = {launch_forward<ForwardShape<Element, kHeadDim, false>>,
                  launch_forward<ForwardShape<Element, kHeadDim, true>>},
      .before_backward = launch_before<Element, kHeadDim>,
      .backward = {launch_backward<Element, kHeadDim, false>, launch_backward<Element, kHeadDim, true>},
      .backward_queries = {},
      .after_backward = {}};
  if constexpr (head_tiles(kHeadDim, false).queries_apart()) {
    kernels.backward_queries[0] = launch_queries<QueriesShape<Element, kHeadDim, false>>;
    kernels.backward_queries[1] = launch_queries<QueriesShape<Element, kHeadDim, true>>;
  } else {
    kernels.after_backward[0] = launch_after<BackwardShape<Element, kHeadDim, false>>;
    kernels.after_backward[1] = launch_after<BackwardShape<Element, kHeadDim, true>>;
  }
  return kernels;
}

}  // namespace headroom::cuda::sm90
