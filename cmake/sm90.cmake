# The Hopper kernels: a file per dtype and head size, generated into the build folder and compiled for sm_90a alone. A
# kernel that spills registers fails the build.
set(table src/attention/cuda/sm90/tiles.h)  # a row for each head size
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table})
file(STRINGS ${table} head_dims REGEX "^    {[0-9]+, {")
list(TRANSFORM head_dims REPLACE "^    {([0-9]+), .*" "\\1")
list(LENGTH head_dims HEAD_DIMS_FOUND)
set(HEADROOM_HEAD_DIMS ${head_dims} CACHE STRING "Head sizes of the Hopper attention kernels")

set(instances "")
set(DECLARATIONS "")
set(INSTANCES "")
foreach(HEAD_DIM ${HEADROOM_HEAD_DIMS})
  foreach(NAME bf16 f16)
    set(ELEMENT __nv_bfloat16)
    if(NAME STREQUAL f16)
      set(ELEMENT __half)
    endif()
    set(file ${CMAKE_BINARY_DIR}/generated/attention/sm90_${NAME}_${HEAD_DIM}.cu)
    configure_file(src/attention/cuda/sm90/instance.cu.in ${file} @ONLY)
    list(APPEND instances ${file})
    string(APPEND DECLARATIONS "extern const Kernels k${NAME}${HEAD_DIM};\n")
    string(APPEND INSTANCES "&k${NAME}${HEAD_DIM}, ")
  endforeach()
endforeach()
configure_file(src/attention/cuda/sm90/table.cu.in ${CMAKE_BINARY_DIR}/generated/attention/sm90_table.cu @ONLY)

add_library(headroom_sm90 OBJECT ${instances} ${CMAKE_BINARY_DIR}/generated/attention/sm90_table.cu
            src/attention/cuda/sm90/lists.cu src/attention/cuda/intervals/bf16x3.cu)
set_target_properties(headroom_sm90 PROPERTIES CUDA_ARCHITECTURES 90a-real)
target_include_directories(headroom_sm90 PRIVATE src include)
target_compile_options(headroom_sm90 PRIVATE --expt-relaxed-constexpr -Xptxas=--warn-on-spills,--warning-as-error)
target_link_libraries(headroom_sm90 PRIVATE fmt::fmt headroom_build_flags)
target_sources(headroom PRIVATE $<TARGET_OBJECTS:headroom_sm90> src/attention/cuda/sm90/launch.cpp)
