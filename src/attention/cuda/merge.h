// Merging partial results of attention on a GPU.
#pragma once

#include "headroom/attention.h"

namespace headroom::cuda {

// Compiled by nvcc; a build without CUDA has none.
void merge_partials(const AttentionPartial& into, const AttentionPartial& from, const Stream& stream);

}  // namespace headroom::cuda
