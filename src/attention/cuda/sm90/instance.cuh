// Launches of one dtype and head size; included by the generated instance files.
#pragma once

#include "attention/cuda/sm90/backward.cuh"
#include "attention/cuda/sm90/backward_queries.cuh"
#include "attention/cuda/sm90/backward_wide.cuh"
#include "attention/cuda/sm90/forward.cuh"
#include "attention/cuda/sm90/kernels.h"
#include "cuda/launch.h"

namespace headroom::cuda::sm90 {

// Launches a kernel whose blocks may use all the shared memory of a multiprocessor.
template <class Shape, template <class> class Shared, class Call, void (*kKernel)(Call)>
void launch_blocks(const Call& call, int blocks, const Stream& stream) {
  static_assert(sizeof(Shared<Shape>) <= 227 << 10, "a block of compute capability 9.0 has no more");
  launch<Begin::early>(Shape::kName, kKernel, blocks, Shape::kThreads, sizeof(Shared<Shape>), stream, call);
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

template <class Shape>
void launch_after(const AfterCall& call, const Stream& stream) {
  const int blocks = call.query_tiles * call.batch * (call.heads / call.group) * call.group_heads;
  launch<Begin::early>("after_backward_kernel", after_backward_kernel<Shape>, blocks, 2 * Shape::kQueries, 0,
                       stream, call);
}

template <class Element, int kHeadDim, bool kGeneral>
constexpr void add_instance(Kernels& to) {
  using Forward = ForwardShape<Element, kHeadDim, kGeneral>;
  to.forward[kGeneral] = launch_blocks<Forward, ForwardShared, ForwardCall, forward_kernel<Forward>>;
  if constexpr (head_tiles(kHeadDim, kGeneral).queries_apart()) {
    using Keys = WideShape<Element, kHeadDim, kGeneral>;
    using Queries = QueriesShape<Element, kHeadDim, kGeneral>;
    to.backward[kGeneral] = launch_blocks<Keys, WideShared, BackwardCall, wide_backward_kernel<Keys>>;
    to.backward_queries[kGeneral] =
        launch_blocks<Queries, QueriesShared, QueriesCall, queries_backward_kernel<Queries>>;
  } else {
    using Shape = BackwardShape<Element, kHeadDim, kGeneral>;
    to.backward[kGeneral] = launch_blocks<Shape, BackwardShared, BackwardCall, backward_kernel<Shape>>;
    to.after_backward[kGeneral] = launch_after<Shape>;
  }
}

template <class Element, int kHeadDim>
constexpr Kernels make_kernels(DType dtype) {
  Kernels kernels{.dtype = dtype, .head_dim = kHeadDim, .before_backward = launch_before<Element, kHeadDim>};
  add_instance<Element, kHeadDim, false>(kernels);
  add_instance<Element, kHeadDim, true>(kernels);
  return kernels;
}

}  // namespace headroom::cuda::sm90
