// What tests do to the copies of the host that stand in for NCCL.
#pragma once

#include <atomic>

namespace headroom::cuda {

// A pair is made when both sides have come, as over NCCL. Both have to be threads of this process.
extern std::atomic<bool> host_pairs_wait;
// Messages do not move, and senders find out.
extern std::atomic<bool> host_messages_fail;

}  // namespace headroom::cuda
