// Transports between ranks.
#pragma once

#include "headroom/comm/mpi_ranks.h"
#include "headroom/comm/thread_ranks.h"
