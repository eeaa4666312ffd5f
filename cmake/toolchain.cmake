# Compiler, sanitizers, ccache and CUDA: what every target of ours is built with.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# CUDA: the cuda preset demands it, ci takes it where it is, the others leave it out.
find_program(HEADROOM_NVCC nvcc PATHS /usr/local/cuda/bin)
set(HEADROOM_CUDA_ENABLED OFF)
if(HEADROOM_CUDA STREQUAL "ON" AND NOT HEADROOM_NVCC)
  message(FATAL_ERROR "HEADROOM_CUDA is ON but nvcc was not found on PATH or in /usr/local/cuda/bin")
elseif(NOT HEADROOM_CUDA STREQUAL "OFF" AND HEADROOM_NVCC)
  set(HEADROOM_CUDA_ENABLED ON)
  set(CMAKE_CUDA_COMPILER ${HEADROOM_NVCC})
  # Machine code for Hopper; PTX for everything from 7.5 up, which the driver compiles when it is loaded: that of 8.0
  # has tensor cores in tf32 and copies that do not wait.
  set(CMAKE_CUDA_ARCHITECTURES 75-virtual 80-virtual 90a-real CACHE STRING "CUDA architectures")
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION --std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION --std=c++20)
  endif()
  find_package(CUDAToolkit REQUIRED)
  # fmt takes nvcc for a compiler without constexpr unless it is told.
  add_compile_definitions($<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
endif()

add_library(headroom_build_flags INTERFACE)
set(warnings -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
if(HEADROOM_WARNINGS_AS_ERRORS)
  list(APPEND warnings -Werror)
endif()
list(JOIN warnings "," host_warnings)
target_compile_options(headroom_build_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:${warnings};-Wpedantic>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${host_warnings}>  # pedantic rejects what nvcc itself generates
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${HEADROOM_WARNINGS_AS_ERRORS}>>:--Werror=all-warnings>)

if(HEADROOM_SANITIZE)
  add_compile_options(-fsanitize=${HEADROOM_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${HEADROOM_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID MATCHES Clang AND HEADROOM_SANITIZE MATCHES address)
    add_compile_definitions(__SANITIZE_ADDRESS__)  # as GCC does by itself
  endif()
  # For the commands and the tests: a fifth less to compile, and less to run. AddressSanitizer sees what a null pointer does as well;
  # the library keeps every check.
  set(HEADROOM_FEWER_CHECKS -fno-sanitize=null,alignment,object-size,vptr)
endif()
