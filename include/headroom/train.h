// Training: what it reads, the phases of a run, which strategy fits, checkpoints.
#pragma once

#include "headroom/train/checkpoint.h"
#include "headroom/train/data.h"
#include "headroom/train/model_files.h"
#include "headroom/train/rehearsal.h"
#include "headroom/train/trainer.h"
