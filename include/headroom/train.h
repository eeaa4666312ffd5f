// Training: checkpoints, the phases of a run.
#pragma once

#include "headroom/train/checkpoint.h"
#include "headroom/train/trainer.h"
