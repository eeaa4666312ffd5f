// Memory as a rehearsal: context, ledger, packer, layout, arena; and a model of a caching allocator to
// compare with.
#pragma once

#include "headroom/memory/arena.h"
#include "headroom/memory/backend.h"
#include "headroom/memory/caching_allocator.h"
#include "headroom/memory/communicator.h"
#include "headroom/memory/context.h"
#include "headroom/memory/layout.h"
#include "headroom/memory/ledger.h"
#include "headroom/memory/packer.h"
#include "headroom/memory/stage.h"
#include "headroom/memory/staging.h"
#include "headroom/memory/stream_order.h"
#include "headroom/memory/tensor.h"
#include "headroom/memory/usage.h"
#include "headroom/memory/work.h"
