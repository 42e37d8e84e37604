#!/usr/bin/env bash
# Makes build/venv (Debian's Python, pinned packages), builds build/dist/*.tar.gz and from it the wheel, and installs the
# wheel there. Safe to run again: packages that are there are kept, the wheel is built anew.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
use_ccache

venv=build/venv
python=$venv/bin/python
[ -x "$python" ] || /usr/bin/python3 -m venv "$venv"
pip() { "$python" -m pip --disable-pip-version-check "$@"; }
stamp=$venv/.requirements
if ! cmp -s scripts/python_requirements.txt "$stamp"; then
  # Alone and first, so that nothing else chooses which build of it comes.
  pip install -q "$(grep '^torch==' scripts/python_requirements.txt)"
  pip install -q -r scripts/python_requirements.txt
  cp scripts/python_requirements.txt "$stamp"
fi

rm -rf build/dist
"$python" -m build -q --sdist --outdir build/dist .
pip wheel -q --no-deps -w build/dist --config-settings cmake.define.CAKE_WERROR=ON build/dist/cake_train-*.tar.gz
pip install -q --force-reinstall --no-deps build/dist/cake_train-*.whl
echo "installed $(basename build/dist/cake_train-*.whl) in $venv"
