// Matrix products of a warpgroup (wgmma): D[64 x N] += A[64 x 16] B[16 x N], 16-bit operands, f32 sums.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/ptx/matrix_descriptor.h"
#include "cuda/ptx/warp.h"

namespace headroom::ptx {

// Registers written before, products after.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Sums that products in flight write are touched after this point, not before.
template <int kCount>
__device__ __forceinline__ void wgmma_pin(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
// Until all but kPending groups of products are done; `sums` are what these write.
template <int kPending, int... kCounts>
__device__ __forceinline__ void wgmma_wait(float (&... sums)[kCounts]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  (wgmma_pin(sums), ...);
}

// Arithmetic that `bits` come from is done before what follows, a wait for products. The assembler moves such
// a wait up, past arithmetic that was to overlap the products, but not past a store; this one is never made,
// as `bits` are zero.
__device__ __forceinline__ void finish_first(std::uint32_t bits, const void* shared) {
  asm volatile(
      "{\n"
      ".reg .pred never;\n"
      "setp.ne.u32 never, %0, 0;\n"
      "@never st.volatile.shared.u32 [%1], %0;\n"
      "}" ::"r"(bits),
      "r"(shared_address(shared))
      : "memory");
}

// D (+)= A B with both operands in shared memory; and with A in registers.
template <class Element, int N, Major kA, Major kB>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], MatrixDescriptor a, MatrixDescriptor b,
                                      bool accumulate);
template <class Element, int N, Major kB>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const std::uint32_t* a, MatrixDescriptor b,
                                      bool accumulate);

// clang-format off
#define HEADROOM_SUMS_32 "{" "%0, %1, %2, %3, %4, %5, %6, %7, " "%8, %9, %10, %11, %12, %13, %14, %15" "}"
#define HEADROOM_OUT_32 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define HEADROOM_SUMS_64 "{" "%0, %1, %2, %3, %4, %5, %6, %7, " "%8, %9, %10, %11, %12, %13, %14, %15, " "%16, %17, %18, %19, %20, %21, %22, %23, " "%24, %25, %26, %27, %28, %29, %30, %31" "}"
#define HEADROOM_OUT_64 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define HEADROOM_SUMS_80 "{" "%0, %1, %2, %3, %4, %5, %6, %7, " "%8, %9, %10, %11, %12, %13, %14, %15, " "%16, %17, %18, %19, %20, %21, %22, %23, " "%24, %25, %26, %27, %28, %29, %30, %31, " "%32, %33, %34, %35, %36, %37, %38, %39" "}"
#define HEADROOM_OUT_80 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define HEADROOM_SUMS_96 "{" "%0, %1, %2, %3, %4, %5, %6, %7, " "%8, %9, %10, %11, %12, %13, %14, %15, " "%16, %17, %18, %19, %20, %21, %22, %23, " "%24, %25, %26, %27, %28, %29, %30, %31, " "%32, %33, %34, %35, %36, %37, %38, %39, " "%40, %41, %42, %43, %44, %45, %46, %47" "}"
#define HEADROOM_OUT_96 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define HEADROOM_SUMS_128 "{" "%0, %1, %2, %3, %4, %5, %6, %7, " "%8, %9, %10, %11, %12, %13, %14, %15, " "%16, %17, %18, %19, %20, %21, %22, %23, " "%24, %25, %26, %27, %28, %29, %30, %31, " "%32, %33, %34, %35, %36, %37, %38, %39, " "%40, %41, %42, %43, %44, %45, %46, %47, " "%48, %49, %50, %51, %52, %53, %54, %55, " "%56, %57, %58, %59, %60, %61, %62, %63" "}"
#define HEADROOM_OUT_128 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define HEADROOM_SUMS_192 "{" "%0, %1, %2, %3, %4, %5, %6, %7, " "%8, %9, %10, %11, %12, %13, %14, %15, " "%16, %17, %18, %19, %20, %21, %22, %23, " "%24, %25, %26, %27, %28, %29, %30, %31, " "%32, %33, %34, %35, %36, %37, %38, %39, " "%40, %41, %42, %43, %44, %45, %46, %47, " "%48, %49, %50, %51, %52, %53, %54, %55, " "%56, %57, %58, %59, %60, %61, %62, %63, " "%64, %65, %66, %67, %68, %69, %70, %71, " "%72, %73, %74, %75, %76, %77, %78, %79, " "%80, %81, %82, %83, %84, %85, %86, %87, " "%88, %89, %90, %91, %92, %93, %94, %95" "}"
#define HEADROOM_OUT_192 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define HEADROOM_SUMS_256 "{" "%0, %1, %2, %3, %4, %5, %6, %7, " "%8, %9, %10, %11, %12, %13, %14, %15, " "%16, %17, %18, %19, %20, %21, %22, %23, " "%24, %25, %26, %27, %28, %29, %30, %31, " "%32, %33, %34, %35, %36, %37, %38, %39, " "%40, %41, %42, %43, %44, %45, %46, %47, " "%48, %49, %50, %51, %52, %53, %54, %55, " "%56, %57, %58, %59, %60, %61, %62, %63, " "%64, %65, %66, %67, %68, %69, %70, %71, " "%72, %73, %74, %75, %76, %77, %78, %79, " "%80, %81, %82, %83, %84, %85, %86, %87, " "%88, %89, %90, %91, %92, %93, %94, %95, " "%96, %97, %98, %99, %100, %101, %102, %103, " "%104, %105, %106, %107, %108, %109, %110, %111, " "%112, %113, %114, %115, %116, %117, %118, %119, " "%120, %121, %122, %123, %124, %125, %126, %127" "}"
#define HEADROOM_OUT_256 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

#define HEADROOM_WGMMA_SHARED(N, TYPE, A, B, P, KA, KB)                                              \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\n"                                            \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " " HEADROOM_SUMS_##N         \
               ", %" A ", %" B ", p, 1, 1, %" KA ", %" KB ";\n}"                                            \
               : HEADROOM_OUT_##N : "l"(a.bits()), "l"(b.bits()), "r"(static_cast<int>(accumulate)),                     \
                 "n"(static_cast<int>(kA)), "n"(static_cast<int>(kB)))
#define HEADROOM_WGMMA_REGISTERS(N, TYPE, A0, A1, A2, A3, B, P, KB)                                        \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\n"                                            \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " " HEADROOM_SUMS_##N         \
               ", {%" A0 ", %" A1 ", %" A2 ", %" A3 "}, %" B ", p, 1, 1, %" KB ";\n}"                       \
               : HEADROOM_OUT_##N : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits()),                    \
                 "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(kB)))

template <class Element, int N, Major kA, Major kB>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], MatrixDescriptor a, MatrixDescriptor b, bool accumulate) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    if constexpr (N == 32) HEADROOM_WGMMA_SHARED(32, "bf16", "16", "17", "18", "19", "20");
    else if constexpr (N == 64) HEADROOM_WGMMA_SHARED(64, "bf16", "32", "33", "34", "35", "36");
    else if constexpr (N == 80) HEADROOM_WGMMA_SHARED(80, "bf16", "40", "41", "42", "43", "44");
    else if constexpr (N == 96) HEADROOM_WGMMA_SHARED(96, "bf16", "48", "49", "50", "51", "52");
    else if constexpr (N == 128) HEADROOM_WGMMA_SHARED(128, "bf16", "64", "65", "66", "67", "68");
    else if constexpr (N == 192) HEADROOM_WGMMA_SHARED(192, "bf16", "96", "97", "98", "99", "100");
    else if constexpr (N == 256) HEADROOM_WGMMA_SHARED(256, "bf16", "128", "129", "130", "131", "132");
  } else {
    if constexpr (N == 32) HEADROOM_WGMMA_SHARED(32, "f16", "16", "17", "18", "19", "20");
    else if constexpr (N == 64) HEADROOM_WGMMA_SHARED(64, "f16", "32", "33", "34", "35", "36");
    else if constexpr (N == 80) HEADROOM_WGMMA_SHARED(80, "f16", "40", "41", "42", "43", "44");
    else if constexpr (N == 96) HEADROOM_WGMMA_SHARED(96, "f16", "48", "49", "50", "51", "52");
    else if constexpr (N == 128) HEADROOM_WGMMA_SHARED(128, "f16", "64", "65", "66", "67", "68");
    else if constexpr (N == 192) HEADROOM_WGMMA_SHARED(192, "f16", "96", "97", "98", "99", "100");
    else if constexpr (N == 256) HEADROOM_WGMMA_SHARED(256, "f16", "128", "129", "130", "131", "132");
  }
}

template <class Element, int N, Major kB>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const std::uint32_t* a, MatrixDescriptor b, bool accumulate) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    if constexpr (N == 32) HEADROOM_WGMMA_REGISTERS(32, "bf16", "16", "17", "18", "19", "20", "21", "22");
    else if constexpr (N == 64) HEADROOM_WGMMA_REGISTERS(64, "bf16", "32", "33", "34", "35", "36", "37", "38");
    else if constexpr (N == 80) HEADROOM_WGMMA_REGISTERS(80, "bf16", "40", "41", "42", "43", "44", "45", "46");
    else if constexpr (N == 96) HEADROOM_WGMMA_REGISTERS(96, "bf16", "48", "49", "50", "51", "52", "53", "54");
    else if constexpr (N == 128) HEADROOM_WGMMA_REGISTERS(128, "bf16", "64", "65", "66", "67", "68", "69", "70");
    else if constexpr (N == 192) HEADROOM_WGMMA_REGISTERS(192, "bf16", "96", "97", "98", "99", "100", "101", "102");
    else if constexpr (N == 256) HEADROOM_WGMMA_REGISTERS(256, "bf16", "128", "129", "130", "131", "132", "133", "134");
  } else {
    if constexpr (N == 32) HEADROOM_WGMMA_REGISTERS(32, "f16", "16", "17", "18", "19", "20", "21", "22");
    else if constexpr (N == 64) HEADROOM_WGMMA_REGISTERS(64, "f16", "32", "33", "34", "35", "36", "37", "38");
    else if constexpr (N == 80) HEADROOM_WGMMA_REGISTERS(80, "f16", "40", "41", "42", "43", "44", "45", "46");
    else if constexpr (N == 96) HEADROOM_WGMMA_REGISTERS(96, "f16", "48", "49", "50", "51", "52", "53", "54");
    else if constexpr (N == 128) HEADROOM_WGMMA_REGISTERS(128, "f16", "64", "65", "66", "67", "68", "69", "70");
    else if constexpr (N == 192) HEADROOM_WGMMA_REGISTERS(192, "f16", "96", "97", "98", "99", "100", "101", "102");
    else if constexpr (N == 256) HEADROOM_WGMMA_REGISTERS(256, "f16", "128", "129", "130", "131", "132", "133", "134");
  }
}
// clang-format on

}  // namespace headroom::ptx
