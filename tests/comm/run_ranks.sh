#!/bin/sh
# Starts a program as ranks of this host, as torchrun does:  run_ranks.sh COUNT PROGRAM ...
# Each rank has another NCCL_HOSTID, so that NCCL takes them for hosts and accepts several on one GPU; their
# messages then go over the loopback interface. Returns the first code of a rank that is not 0. Ranks that are
# left a few seconds after another has failed are killed: one of the tests stops a rank.
count=$1
shift
export WORLD_SIZE="$count" LOCAL_WORLD_SIZE="$count" MASTER_ADDR=127.0.0.1 MASTER_PORT="${MASTER_PORT:-$((20000 + $$ % 40000))}"
export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-lo}"
rank=0
ranks=
while [ "$rank" -lt "$count" ]; do
  RANK=$rank LOCAL_RANK=$rank NCCL_HOSTID="rank$rank" "$@" &
  ranks="$ranks $!"
  rank=$((rank + 1))
done
code=0
set -- $ranks
while [ $# -gt 0 ]; do
  wait "$1"
  ended=$?
  shift
  [ "$ended" -ne 0 ] && [ "$code" -eq 0 ] || continue
  code=$ended
  [ $# -eq 0 ] || { sleep 5; kill -KILL "$@" 2>/dev/null; }
done
exit "$code"
