#!/bin/sh
# Starts a program as ranks of this host, as torchrun does:  run_ranks.sh COUNT PROGRAM ...
# Each rank has another NCCL_HOSTID, so that NCCL takes them for hosts and accepts several on one GPU; their
# messages then go over the loopback interface. Returns the first code of a rank that is not 0. A rank that runs
# for more than two minutes is killed.
count=$1
shift
export WORLD_SIZE="$count" MASTER_ADDR=127.0.0.1 MASTER_PORT="${MASTER_PORT:-$((20000 + $$ % 40000))}"
export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-lo}"
rank=0
ranks=
while [ "$rank" -lt "$count" ]; do
  RANK=$rank LOCAL_RANK=$rank NCCL_HOSTID="rank$rank" timeout --signal=KILL 120 "$@" &
  ranks="$ranks $!"
  rank=$((rank + 1))
done
code=0
for one in $ranks; do
  wait "$one" || { last=$?; [ "$code" -ne 0 ] || code=$last; }
done
exit "$code"
