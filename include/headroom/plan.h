// Knowing before running: devices one does not have, what a step takes and how long, the best strategy that
// fits.
#pragma once

#include "headroom/plan/answer.h"
#include "headroom/plan/catalogue.h"
#include "headroom/plan/cost_model.h"
#include "headroom/plan/implementations.h"
#include "headroom/plan/links.h"
#include "headroom/plan/plan.h"
#include "headroom/plan/played_phase.h"
#include "headroom/plan/question.h"
