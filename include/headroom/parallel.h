// Attention over several ranks: who holds which tokens, who sends what when, and the ways to compute it. The
// loss over a vocabulary that ranks divide.
#pragma once

#include "headroom/parallel/attention_time.h"
#include "headroom/parallel/parallel_schedule.h"
#include "headroom/parallel/partition.h"
#include "headroom/parallel/rank_classes.h"
#include "headroom/parallel/ring_attention.h"
#include "headroom/parallel/ring_schedule.h"
#include "headroom/parallel/vocabulary_loss.h"
#include "headroom/parallel/ways.h"
