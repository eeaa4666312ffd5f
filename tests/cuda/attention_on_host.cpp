// As kernels_on_host.cpp, for attention; Hopper's kernels are files of their own (tests/CMakeLists.txt).
#include "cuda/on_host.h"
// Kernels come after what they need of the language.
#include "attention/cuda/intervals/portable.cu"
#include "attention/cuda/intervals/tf32.cu"
#include "attention/cuda/intervals/tf32_single.cu"
#include "attention/cuda/merge.cu"
#include "attention/cuda/shared.cu"
