#!/usr/bin/env bash
# Runs fuzzers of a build folder, one per core at a time, from the seeds in tests/fuzz/seeds where they have some; what they find
# worth keeping stays in the build folder for the next run. Usage: run_fuzzers.sh BUILD_FOLDER SECONDS [NAME...]; without names: all
set -eu
export folder=$1 seconds=$2
shift 2
seeds=$(dirname "$0")/../tests/fuzz/seeds
export seeds
if [ $# -eq 0 ]; then
  for fuzzer in "$folder"/fuzz_*; do
    if [ -f "$fuzzer" ] && [ -x "$fuzzer" ]; then set -- "$@" "$(basename "$fuzzer")"; fi
  done
fi
run() {
  corpus=("$folder/corpus/$1")
  mkdir -p "${corpus[0]}"
  if [ -d "$seeds/$1" ]; then corpus+=("$seeds/$1"); fi
  log=$folder/$1.log
  code=0
  "$folder/$1" -max_total_time="$seconds" -artifact_prefix="$folder/" -rss_limit_mb=2048 -verbosity=0 \
    -print_final_stats=1 "${corpus[@]}" >"$log" 2>&1 || code=$?
  { echo "fuzz: $1 for $seconds s"; cat "$log"; } # at the end, so that two at a time do not mix
  return "$code"
}
export -f run
printf '%s\n' "$@" | xargs -P "$(nproc)" -I {} bash -c 'run {}'
