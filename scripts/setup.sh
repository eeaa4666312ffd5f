#!/usr/bin/env bash
# Installs the Debian packages that a target needs and that are missing. Usage: setup.sh build|checks|browser
# With everything in place it does nothing and needs no privileges and no network.
set -eu

build=(g++ cmake ninja-build libfmt-dev libcli11-dev nlohmann-json3-dev libgtest-dev libgmock-dev libbenchmark-dev
       libopenmpi-dev openmpi-bin)
checks=("${build[@]}" clang-format-16 clang-16 clang-tidy-16 libclang-rt-16-dev)  # 14 has no std::source_location
browser=(chromium python3)  # apart, because it is large: the browser test skips without it

case "${1:-}" in
  build) wanted=("${build[@]}") ;;
  checks) wanted=("${checks[@]}") ;;
  browser) wanted=("${browser[@]}") ;;
  *) echo "setup: '${1:-}' is not a set of packages; use build, checks or browser" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null; then
  echo "setup: not a Debian system, so nothing is installed; needed: ${wanted[*]}" >&2
  exit 0  # CMake names what is really missing
fi

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ]; then as_root=(env)
elif command -v sudo >/dev/null; then as_root=(sudo env)
else
  echo "setup: missing packages: ${missing[*]} (run as root: apt-get install ${missing[*]})" >&2
  exit 1
fi

echo "setup: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" apt-get update &&
       "${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } \
     >"$log" 2>&1; then
  tail -n 5 "$log" >&2
  echo "setup: could not install: ${missing[*]}" >&2
  exit 1
fi
