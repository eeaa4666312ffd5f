// The devices of this machine and their backends.
#pragma once

#include "headroom/device/devices.h"
