# What the scripts share; sourced, not run. Moves to the repository root and sets CAKE_ROOT and CAKE_JOBS.
# shellcheck shell=bash
CAKE_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$CAKE_ROOT" || exit 1
CAKE_JOBS=$(nproc 2>/dev/null || echo 1)

say() { printf '\n== %s\n' "$*"; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# Compiled objects are shared between builds and between clones in other folders: relative to its build folder every copy
# of the sources lies alike.
use_ccache() {
  command -v ccache >/dev/null || return 0
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR=/ CCACHE_NOHASHDIR=1
}

# build PRESET [TARGET...]: configures and builds a preset of CMakePresets.json in build/PRESET.
build() {
  local preset=$1
  shift
  cmake --preset "$preset" >"$CAKE_ROOT/build/.configure-$preset.log" 2>&1 || { cat "$CAKE_ROOT/build/.configure-$preset.log"; return 1; }
  cmake --build --preset "$preset" -j "$CAKE_JOBS" ${1:+--target "$@"}
}
mkdir -p "$CAKE_ROOT/build"
