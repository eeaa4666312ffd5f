#include "attention/cuda/sm90_kernels.h"
#include "attention/cuda/visits-inl.h"

namespace headroom::sm90 {

void write_visits(const cuda::AttentionCall& call, const cuda::Visits& visits, const Stream& stream) {
  cuda::launch_visits(call, visits, stream);
}

}  // namespace headroom::sm90
