#!/usr/bin/env bash
# Builds and runs for this machine. With a GPU and nvcc that is the CUDA program for the architectures found, and training on the first GPU;
# elsewhere the release preset and the CPU. Usage: here.sh build [TARGET...] | here.sh train OPTIONS...
set -eu
cd "$(dirname "$0")/.."

preset=release
options=(-D "HEADROOM_WARNINGS_AS_ERRORS=$([ -n "${CI:-}" ] && echo ON || echo OFF)")
device=()
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -E '^[0-9]+\.[0-9]+$' | sort -u || true)
if [ -n "$nvcc" ] && { [ -n "$capabilities" ] || [ -e /dev/nvidia0 ]; }; then
  # A GPU that is older than this nvcc compiles for is left out. One that is newer, and every GPU where there is no nvidia-smi, is served by
  # the architectures that the preset has by itself. 9.0 is compiled with Hopper's own instructions.
  known=$("$nvcc" --list-gpu-arch | sed 's/compute_//' | sort -n)
  usable=$(echo "$capabilities" | sed 's/\.//' | awk -v oldest="$(echo "$known" | head -1)" '$1 >= oldest')
  if [ -z "$capabilities" ] || [ -n "$usable" ]; then
    preset=cuda
    device=(--device cuda:0)
    if [ -n "$usable" ] && ! echo "$usable" | grep -qvxF "$known"; then
      architectures=$(echo "$usable" | sed 's/$/-real/; s/^90-/90a-/' | paste -sd ';')
      options+=(-D "CMAKE_CUDA_ARCHITECTURES=$architectures")
    fi
  else
    echo "here: this nvcc does not compile for compute capability $(echo "$capabilities" | paste -sd ' '); the CPU is used" >&2
  fi
fi

case "${1:-}" in
  build)
    shift
    if [ "$preset" = cuda ]; then echo "build: a GPU and nvcc are here, so CUDA is built (${architectures:-all architectures}) into build/cuda"; fi
    cmake --preset "$preset" "${options[@]}"
    cmake --build --preset "$preset" ${1:+--target "$@"}
    ;;
  train)
    shift
    exec "build/$preset/headroom" train "${device[@]}" "$@"
    ;;
  *) echo "here: '${1:-}' is not known; use build or train" >&2; exit 2 ;;
esac
