#!/usr/bin/env bash
# The room rule: a file may include its own room and those above it, never those below or beside it.
# Reads the #include lines of src/ and include/; a path's first folder (or a public header's stem) is its room.
# Usage: check_rooms.sh [ROOT]
set -eu
cd "${1:-$(dirname "$0")/..}"

find src include -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | sort | xargs awk '
  BEGIN {
    # Top to bottom; rooms on one line stand side by side and do not see each other.
    shelves = "core;memory;cpu cuda report;device;comm;ops;attention;loss;parallel;model;train eager;plan;jobs"
    count = split(shelves, shelf, ";")
    for (level = 1; level <= count; level++) {
      rooms = split(shelf[level], room_list, " ")
      for (i = 1; i <= rooms; i++) level_of[room_list[i]] = level
    }
  }
  function room_of(path) {
    sub(/^src\//, "", path); sub(/^(include\/)?headroom\//, "", path)
    sub(/\/.*/, "", path); sub(/\.h$/, "", path)
    return path
  }
  /^[ \t]*#[ \t]*include[ \t]*("|<headroom\/)/ {
    split($0, quoted, /["<>]/); included = quoted[2]
    from = room_of(FILENAME); to = room_of(included)
    if (from == "headroom") next  # the umbrella header sees every room
    if (!(from in level_of)) { printf "%s: %s is not a room\n", FILENAME, from; bad = 1; nextfile }
    if (!(to in level_of)) { printf "%s:%d: includes \"%s\", which names no room\n", FILENAME, FNR, included; bad = 1; next }
    if (from != to && level_of[to] >= level_of[from]) {
      printf "%s:%d: room %s may not use %s (\"%s\")\n", FILENAME, FNR, from, to, included; bad = 1
    }
  }
  END { if (bad) exit 1; print "rooms: clean" }
'
