#!/usr/bin/env bash
# Runs every fuzzer of a build folder. Usage: run_fuzzers.sh BUILD_FOLDER SECONDS
set -eu
for fuzzer in "$1"/fuzz_*; do
  [ -x "$fuzzer" ] || continue
  echo "fuzz: $(basename "$fuzzer") for $2 s"
  "$fuzzer" -max_total_time="$2" -artifact_prefix="$1/" -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1
done
