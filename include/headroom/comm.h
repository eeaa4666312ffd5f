// Transports between ranks.
#pragma once

#include "headroom/comm/thread_ranks.h"
