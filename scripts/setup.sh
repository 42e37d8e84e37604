#!/usr/bin/env bash
# Installs what building, testing and the quickstart need on Debian 12 (bookworm), as root or through sudo. Does nothing,
# quickly, when everything is there. Safe to run again.
set -euo pipefail

packages=(
  # building the library
  g++ binutils cmake ninja-build ccache git pkg-config libtbb-dev
  # ranks as processes
  libopenmpi-dev openmpi-bin
  # the cake command
  nlohmann-json3-dev libcli11-dev libfmt-dev libssl-dev
  # tests and benchmarks
  libgtest-dev libbenchmark-dev libopenblas-dev python3 python3-venv
  # format, lint, docs
  clang-format-14 clang-tidy-14 shellcheck doxygen
  # apt over https on a bare machine
  ca-certificates
)

fail() { printf 'setup.sh: %s\n' "$*" >&2; exit 1; }
[ $# -eq 0 ] || fail "takes no arguments, got: $*"
for tool in dpkg-query apt-get; do
  command -v "$tool" >/dev/null || fail "no $tool: not a Debian system. Install the equivalents of: ${packages[*]}"
done

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done

if [ ${#missing[@]} -eq 0 ]; then
  echo "setup.sh: all ${#packages[@]} packages are installed"
else
  as_root=(env DEBIAN_FRONTEND=noninteractive)
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      fail "installing needs root or sudo, and this is neither. As root: apt-get install ${missing[*]}"
    # Without a terminal sudo could only hang at its password prompt.
    if [ -t 0 ]; then as_root=(sudo "${as_root[@]}"); else as_root=(sudo -n "${as_root[@]}"); fi
  fi
  apt() { "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" </dev/null; }
  echo "setup.sh: installing ${missing[*]}"
  apt update || fail "apt-get update failed (see above)"
  apt install -y --no-install-recommends "${missing[@]}" || fail "apt-get install failed (see above)"
fi

# A g++ or cmake put before Debian's in PATH must be recent enough too.
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }
gcc_version=$(g++ -dumpfullversion -dumpversion)
cmake_version=$(cmake --version | sed -n 's/^cmake version //p')
version_at_least "$gcc_version" 12 || fail "g++ is $gcc_version, 12 or later is needed"
version_at_least "$cmake_version" 3.25 || fail "cmake is $cmake_version, 3.25 or later is needed"
