#!/usr/bin/env bash
# The short clang-tidy list of .clang-tidy over our own sources; what needs the CUDA toolkit's headers is left out. Usage: check_tidy.sh BUILD_FOLDER
set -eu
cd "$(dirname "$0")/.."
# Without the precompiled headers, so that every file has to include what it uses.
mkdir -p "$1/tidy"
sed -E 's/-Winvalid-pch (-Xclang -include(-pch)? -Xclang [^ ]+ )+//' "$1/compile_commands.json" >"$1/tidy/compile_commands.json"
git ls-files -z --cached --others --exclude-standard -- 'src/*.cpp' 'tools/*.cpp' ':!src/cuda' ':!src/comm/cuda/messages.cpp' ':!src/comm/cuda/nccl.cpp' ':!src/attention/cuda/sm90/launch.cpp' |
  xargs -0 -n 4 -P "$(nproc)" clang-tidy-16 --quiet -p "$1/tidy" 2>/dev/null
echo "tidy: clean"
