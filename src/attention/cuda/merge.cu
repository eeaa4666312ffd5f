#include "attention/cuda/merge-inl.h"

namespace headroom::cuda {

void merge_partials(const AttentionPartial& into, const AttentionPartial& from, const Stream& stream) {
  launch_merge(into, from, stream);
}

}  // namespace headroom::cuda
