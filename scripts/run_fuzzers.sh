#!/usr/bin/env bash
# Runs fuzzers of a build folder, each with its dictionary where it has one. Usage: run_fuzzers.sh BUILD_FOLDER SECONDS [NAME...]
# Without names: all that are there.
set -eu
folder=$1 seconds=$2
shift 2
dictionaries=$(dirname "$0")/../tests/fuzz
if [ $# -eq 0 ]; then
  for fuzzer in "$folder"/fuzz_*; do [ -x "$fuzzer" ] && set -- "$@" "$(basename "$fuzzer")"; done
fi
for name in "$@"; do
  echo "fuzz: $name for $seconds s"
  dictionary=()
  [ -e "$dictionaries/$name.dict" ] && dictionary=(-dict="$dictionaries/$name.dict")
  "$folder/$name" -max_total_time="$seconds" -artifact_prefix="$folder/" -rss_limit_mb=2048 -verbosity=0 \
    -print_final_stats=1 "${dictionary[@]}"
done
