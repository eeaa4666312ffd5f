#!/usr/bin/env bash
# Compiles the kernels of a training step for compute capabilities 6.0 and 6.1, which CUDA 13 no longer does: Clang makes PTX
# with the headers of CUDA 12, whose assembler makes machine code of it. pip has no CUDA 12 nvcc, only its headers and ptxas.
# Downloads 200 MB into build/cuda12 the first time; needs clang++-16 (make setup-checks) and python3 with venv.
set -eu
cd "$(dirname "$0")/.."

# 12.6 is what Clang 16's own headers go with; curand's are included by them.
packages=(nvidia-cuda-nvcc-cu12==12.6.85 nvidia-cuda-runtime-cu12==12.6.77 nvidia-cuda-cccl-cu12==12.6.77
          nvidia-curand-cu12==10.3.7.77)
toolkit=build/cuda12/toolkit
log=build/cuda12/log
mkdir -p build/cuda12

fail() {
  grep -m 5 -E 'error|ERROR|fatal' "$log" >&2 || tail -n 5 "$log" >&2
  echo "check-sm61: $1 (all of it in $log)" >&2
  exit 1
}

if [ "$(cat build/cuda12/packages 2>/dev/null)" != "${packages[*]}" ]; then
  rm -rf build/cuda12/venv "$toolkit"
  python3 -m venv build/cuda12/venv >"$log" 2>&1 || fail "python3 cannot make a virtual environment"
  build/cuda12/venv/bin/pip install --no-deps "${packages[@]}" >"$log" 2>&1 || fail "pip could not install ${packages[*]}"
  # What Clang takes for an installation of CUDA.
  mkdir -p "$toolkit/include" "$toolkit/bin"
  for part in cuda_nvcc cuda_runtime cuda_cccl curand; do
    cp -r build/cuda12/venv/lib/python3*/site-packages/nvidia/$part/include/. "$toolkit/include"
  done
  cp build/cuda12/venv/lib/python3*/site-packages/nvidia/cuda_nvcc/bin/ptxas "$toolkit/bin"
  cp -r build/cuda12/venv/lib/python3*/site-packages/nvidia/cuda_nvcc/nvvm "$toolkit"
  rm -rf build/cuda12/venv
  echo "${packages[*]}" >build/cuda12/packages
fi

# Everything that a training step launches on such a GPU, besides cuBLASLt.
sources=(src/attention/cuda/intervals/portable.cu src/attention/cuda/shared.cu src/attention/cuda/merge.cu src/ops/cuda/*.cu src/loss/cuda/*.cu)
for source in "${sources[@]}"; do
  # fmt's 128-bit floats are the host's. What Clang does not unroll is no error.
  clang++-16 -x cuda --cuda-path="$toolkit" --cuda-gpu-arch=sm_60 --cuda-device-only -S -std=c++20 -O3 -DNDEBUG \
    -Wno-unknown-cuda-version -Wno-pass-failed -DFMT_USE_CONSTEXPR=1 -DFMT_USE_FLOAT128=0 -Iinclude -Isrc \
    "$source" -o build/cuda12/kernels.ptx >"$log" 2>&1 || fail "$source does not compile for sm_60"
  for architecture in sm_60 sm_61; do
    "$toolkit/bin/ptxas" -v -O3 -arch=$architecture build/cuda12/kernels.ptx -o build/cuda12/kernels.cubin \
      >"$log" 2>&1 || fail "$source does not assemble for $architecture"
    awk -v architecture=$architecture -v source="$source" '
      / bytes spill stores/ { if ($5 > 0) { spilling++; if ($5 > spilled) spilled = $5 } }
      /Used [0-9]+ registers/ { kernels++; for (i = 1; i < NF; i++) if ($i == "Used" && $(i + 1) > most) most = $(i + 1) }
      END { printf "check-sm61: %s for %s: %d kernels, at most %d registers, %d of them spill (up to %d bytes)\n",
                   source, architecture, kernels, most, spilling, spilled }' "$log"
  done
done
