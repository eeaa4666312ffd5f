#include "attention/cuda/merge-inl.h"

namespace headroom::cuda {

void merge_partials(const MergeCall& call, const Stream& stream) {
  launch_merge(call, stream);
}

void close_partial(const CloseCall& call, const Stream& stream) {
  launch_close(call, stream);
}

}  // namespace headroom::cuda
