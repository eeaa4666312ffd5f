// The loops behind measured_peak_flops, one per instruction set; each returns how many operations it did.
#pragma once

namespace headroom {

double run_multiply_adds_portable(long steps);
double run_multiply_adds_avx2(long steps);
double run_multiply_adds_avx512(long steps);

}  // namespace headroom
