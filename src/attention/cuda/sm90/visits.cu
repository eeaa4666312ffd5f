#include "attention/cuda/sm90/kernels.h"
#include "attention/cuda/sm90/visits-inl.h"

namespace headroom::sm90 {

void copy_lists(const cuda::AttentionCall& call, const cuda::BlockLists& to, const Stream& stream) {
  cuda::launch_copy_lists(call, to, stream);
}

void write_visits(const cuda::AttentionCall& call, const cuda::Visits& visits, const Stream& stream) {
  cuda::launch_visits(call, visits, stream);
}

}  // namespace headroom::sm90
