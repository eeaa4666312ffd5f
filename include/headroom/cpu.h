// The CPU backend: its threads, its description, its arenas and streams.
#pragma once

#include "headroom/cpu/cpu_backend.h"
#include "headroom/cpu/thread_pool.h"
