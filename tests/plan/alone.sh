#!/usr/bin/env bash
# headroom_plan plans what the whole library plans, and holds neither vector kernels nor threads nor files.
# Usage: alone.sh LINKED_WITH_HEADROOM_PLAN LINKED_WITH_HEADROOM HEADROOM_PROGRAM LIBHEADROOM_PLAN
set -eu
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

for what in h200 cpus; do
  "$1" $what > "$folder/alone_$what"
  "$2" $what > "$folder/whole_$what"
  cmp "$folder/alone_$what" "$folder/whole_$what"
done
"$3" plan --model qwen3-4b --context 131072 --device h200 --json > "$folder/program"
cmp "$folder/alone_h200" "$folder/program"
test "$(wc -l < "$folder/alone_cpus")" -eq 3

nm -C "$4" > "$folder/symbols"
grep -q ' T headroom::answer_plan' "$folder/symbols"
kernels='headroom::cpu::[a-z_]*_kernels_(portable|avx2|avx512)\(\)|headroom::ThreadPool::.*'
calls='U (pthread_create|std::thread::.*|f?open(64|at)?|mmap(64)?|stat(64)?|std::filesystem::[a-z_]*\(.*|cuda[A-Z].*|dlopen)'
if grep -E " ($kernels|$calls)\$" "$folder/symbols"; then
  echo "libheadroom_plan has what planning does not need (above)"
  exit 1
fi
