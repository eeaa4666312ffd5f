#!/usr/bin/env bash
# Runs fuzzers of a build folder, from the seeds in tests/fuzz/seeds where they have some; what they find worth keeping stays in the
# build folder for the next run. Usage: run_fuzzers.sh BUILD_FOLDER SECONDS [NAME...]; without names: all that are there
set -eu
folder=$1 seconds=$2
shift 2
seeds=$(dirname "$0")/../tests/fuzz/seeds
if [ $# -eq 0 ]; then
  for fuzzer in "$folder"/fuzz_*; do
    if [ -f "$fuzzer" ] && [ -x "$fuzzer" ]; then set -- "$@" "$(basename "$fuzzer")"; fi
  done
fi
for name in "$@"; do
  echo "fuzz: $name for $seconds s"
  corpus=("$folder/corpus/$name")
  mkdir -p "${corpus[0]}"
  if [ -d "$seeds/$name" ]; then corpus+=("$seeds/$name"); fi
  "$folder/$name" -max_total_time="$seconds" -artifact_prefix="$folder/" -rss_limit_mb=2048 -verbosity=0 \
    -print_final_stats=1 "${corpus[@]}"
done
