// The vocabulary: errors, byte sizes, numbers and lists as text, dtypes, devices, shapes and views, files,
// checksums, random numbers, kernel families.
#pragma once

#include "headroom/core/bytes.h"
#include "headroom/core/checked.h"
#include "headroom/core/checksum.h"
#include "headroom/core/device.h"
#include "headroom/core/dtype.h"
#include "headroom/core/elements.h"
#include "headroom/core/error.h"
#include "headroom/core/files.h"
#include "headroom/core/finite.h"
#include "headroom/core/kernel_family.h"
#include "headroom/core/memory_status.h"
#include "headroom/core/parse.h"
#include "headroom/core/random.h"
#include "headroom/core/stream.h"
#include "headroom/core/tensor_view.h"
#include "headroom/core/text.h"
#include "headroom/core/timing.h"
