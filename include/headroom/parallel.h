// Attention over several ranks: who holds which tokens, who sends what when, and the passes themselves.
#pragma once

#include "headroom/parallel/partition.h"
#include "headroom/parallel/ring_attention.h"
#include "headroom/parallel/ring_schedule.h"
