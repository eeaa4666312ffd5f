// The table of one instruction set.
#pragma once

#include "attention/cpu/backward-inl.h"
#include "attention/cpu/forward-inl.h"

namespace headroom::cpu {

template <class Vec>
constexpr AttentionKernels make_attention_kernels() {
  return {.pack_rows = pack_rows<Vec>,
          .pack_transposed = pack_transposed<Vec>,
          .store_rows = store_tile<Vec>,
          .row_statistics = row_statistics<Vec>,
          .forward = forward<Vec>,
          .backward_key_value = backward_key_value<Vec>,
          .backward_query = backward_query<Vec>};
}

}  // namespace headroom::cpu
