// Attention over several ranks: who holds which tokens, who sends what when, and the ways to compute it.
#pragma once

#include "headroom/parallel/attention_time.h"
#include "headroom/parallel/parallel_schedule.h"
#include "headroom/parallel/partition.h"
#include "headroom/parallel/rank_classes.h"
#include "headroom/parallel/ring_attention.h"
#include "headroom/parallel/ring_schedule.h"
#include "headroom/parallel/ways.h"
