// The model: its configuration, its parameters and their files, its step and the strategy of it.
#pragma once

#include "headroom/model/config.h"
#include "headroom/model/decoder.h"
#include "headroom/model/parameters.h"
#include "headroom/model/safetensors.h"
#include "headroom/model/shards.h"
#include "headroom/model/strategy.h"
