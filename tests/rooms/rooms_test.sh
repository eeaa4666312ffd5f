#!/usr/bin/env bash
# check_rooms.sh accepts a tree that keeps the rule and rejects each tree that breaks it.
set -eu
check=$1/scripts/check_rooms.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree"/src/{core,memory,cpu,cuda,eager} "$tree"/include/headroom/memory

write() {
  case $2 in
    '<'*) printf '#include %s\n' "$2" ;;
    *) printf '#include "%s"\n' "$2" ;;
  esac >"$tree/$1"
}

write src/memory/good.cpp headroom/core/error.h
write include/headroom/memory/good.h headroom/core.h
write src/memory/system.cpp '<vector>'
"$check" "$tree" >/dev/null

expect_rejected() {
  write "$1" "$2"
  if "$check" "$tree" >"$tree/log"; then echo "not rejected: $1 includes $2"; exit 1; fi
  grep -q "$1" "$tree/log" || { echo "the message does not name $1:"; cat "$tree/log"; exit 1; }
  rm "$tree/$1"
}
expect_rejected src/core/below.cpp memory/lifetimes.h
expect_rejected src/core/below.cpp headroom/memory.h
expect_rejected include/headroom/memory/below.h headroom/cpu/thread_pool.h
expect_rejected src/cpu/beside.cpp cuda/check.h
expect_rejected src/eager/beside.cpp headroom/train/data.h
expect_rejected src/eager/below.cpp headroom/plan.h
expect_rejected src/memory/nowhere.cpp attic/thing.h
expect_rejected src/memory/angle.cpp '<headroom/cpu.h>'
