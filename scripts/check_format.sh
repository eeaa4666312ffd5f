#!/usr/bin/env bash
# clang-format over every tracked or new source file; with --fix, rewrites them.
set -eu
cd "$(dirname "$0")/.."
mode=(--dry-run --Werror)
[ "${1:-}" = --fix ] && mode=(-i)
git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cu' '*.cuh' |
  xargs -0 clang-format-16 --style=file "${mode[@]}"
[ "${1:-}" = --fix ] || echo "format: clean"
