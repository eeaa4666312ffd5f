// Training: checkpoints.
#pragma once

#include "headroom/train/checkpoint.h"
