// What people ask for as a whole: a plan, a training run, a profile; and the rates of this machine, which
// they choose strategies by.
#pragma once

#include "headroom/jobs/plan.h"
#include "headroom/jobs/profile.h"
#include "headroom/jobs/rates.h"
#include "headroom/jobs/run_device.h"
#include "headroom/jobs/step_program.h"
#include "headroom/jobs/train.h"
