#!/usr/bin/env bash
# Builds the runtime three ways and runs its tests: as released, with sanitizers, and for AArch64 under an emulator.
#
# everywhere.sh PYTHON [release] [sanitize] [aarch64]; PYTHON has numpy, and Pillow to compare with. All three without a name.
# Needs CMake, Ninja and a C++20 compiler; for AArch64 Debian's g++-aarch64-linux-gnu and qemu-user, which root installs here.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
python=$(command -v "$1")
shift
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

check() {  # NAME [OPTION OF CMAKE]...
  local name=$1 start=$SECONDS
  shift
  {
    cmake -S "$source" -B "$place/$name" -G Ninja -DPython3_EXECUTABLE="$python" "$@" &&
      ninja -C "$place/$name"
  } > "$place/log" 2>&1 || { cat "$place/log"; exit 1; }
  echo "$name: built in $((SECONDS - start)) s"
  ctest --test-dir "$place/$name" --output-on-failure --no-tests=error -j 2
}

[ $# -gt 0 ] || set -- release sanitize aarch64
for name in "$@"; do
  case $name in
    release) check release ;;
    sanitize) check sanitize -DFRUGALVIT_SANITIZE=ON -DFRUGALVIT_FUZZ=4000 ;;
    aarch64)
      if ! command -v aarch64-linux-gnu-g++ || ! command -v qemu-aarch64; then
        [ "$(id -u)" = 0 ] || { echo "aarch64: install g++-aarch64-linux-gnu and qemu-user" >&2; exit 1; }
        apt-get update -qq
        apt-get install -qq -y --no-install-recommends g++-aarch64-linux-gnu qemu-user
      fi > /dev/null
      check aarch64 -DCMAKE_TOOLCHAIN_FILE="$source/tests/aarch64.cmake" -DFRUGALVIT_FUZZ=400
      ;;
    *) echo "$name: no such build. Use release, sanitize or aarch64."; exit 2 ;;
  esac
done
