#!/bin/sh
# Training over processes: mpi_train.sh PROGRAM MPIRUN...
set -eu
program=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  echo "$1"
  exit 1
}
run() { # OUT OPTIONS...
  out=$folder/$1
  shift
  echo "$program train --model demo --data recall --context 96 --batch 2 --dtype f32 --threads 1 --budget 64MiB --out $out $*"
}
losses() { sed 's/.*"loss":\([^,]*\),.*/\1/' "$folder/$1/metrics.jsonl"; }

$(run threads --steps 6 --ranks 3) >"$folder/threads.txt"
"$@" -n 3 $(run processes --steps 6) >"$folder/processes.txt"
[ "$(losses processes)" = "$(losses threads)" ] || fail "processes and threads have other losses"
[ "$(grep -c '^done' "$folder/processes.txt")" = 1 ] || fail "rank 0 alone prints"

# A run on processes goes on as one rank.
$(run processes --steps 8 --resume) >"$folder/resumed.txt"

# Groups that divide the batch, and a state that all ranks divide.
for shard in none optimizer full; do
  $(run threads_$shard --steps 4 --ranks 4 --ring 2 --shard $shard) >"$folder/threads.txt"
  "$@" -n 4 $(run processes_$shard --steps 4 --ring 2 --shard $shard) >"$folder/processes.txt"
  [ "$(losses processes_$shard)" = "$(losses threads_$shard)" ] || fail "processes and threads have other losses with --shard $shard"
done

# Ranks that divide the vocabulary.
for shard in none full; do
  $(run threads_words_$shard --steps 4 --ranks 3 --loss-ranks vocabulary --shard $shard) >"$folder/threads.txt"
  "$@" -n 3 $(run processes_words_$shard --steps 4 --loss-ranks vocabulary --shard $shard) >"$folder/processes.txt"
  [ "$(losses processes_words_$shard)" = "$(losses threads_words_$shard)" ] || fail "processes and threads have other losses with a divided vocabulary and --shard $shard"
done

if "$@" -n 1 $(run other --steps 6) : -n 2 $(run other --steps 6 --seed 3) >"$folder/other.txt" 2>&1; then
  fail "ranks with other options trained"
fi
grep -q "rank 0 has --seed 0, rank 1 has 3" "$folder/other.txt" || fail "$(cat "$folder/other.txt")"
[ ! -e "$folder/other" ] || fail "ranks with other options have made the folder"
