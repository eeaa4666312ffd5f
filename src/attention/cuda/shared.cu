#include "attention/cuda/shared-inl.h"

namespace headroom::cuda {

const SharedLaunches& shared_launches() {
  return kSharedLaunches;
}

}  // namespace headroom::cuda
