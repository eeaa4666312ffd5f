// The whole public API.
#pragma once

#include "headroom/attention.h"
#include "headroom/comm.h"
#include "headroom/core.h"
#include "headroom/cpu.h"
#include "headroom/device.h"
#include "headroom/eager.h"
#include "headroom/jobs.h"
#include "headroom/loss.h"
#include "headroom/memory.h"
#include "headroom/model.h"
#include "headroom/ops.h"
#include "headroom/parallel.h"
#include "headroom/plan.h"
#include "headroom/report.h"
#include "headroom/train.h"
