// Transports between ranks.
#pragma once

#include "headroom/comm/launched_rank.h"
#include "headroom/comm/mpi_ranks.h"
#include "headroom/comm/nccl_ranks.h"
#include "headroom/comm/thread_ranks.h"
