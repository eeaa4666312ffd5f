// Launches run on the host.
#pragma once

#include "cuda/on_host.h"
#include "headroom/core/error.h"
