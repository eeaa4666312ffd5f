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
  preset=cuda
  device=(--device cuda:0)
  # Without nvidia-smi: the architectures that the preset has by itself. 9.0 is compiled with Hopper's own instructions.
  if [ -n "$capabilities" ]; then
    architectures=$(echo "$capabilities" | sed 's/\.//; s/$/-real/; s/^90-/90a-/' | paste -sd ';')
    options+=(-D "CMAKE_CUDA_ARCHITECTURES=$architectures")
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
