// What people look at: tables of text, and pages with pictures.
#pragma once

#include "headroom/report/page.h"
#include "headroom/report/table.h"
