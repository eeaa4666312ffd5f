// Training: where its samples come from.
#pragma once

#include "headroom/train/data.h"
