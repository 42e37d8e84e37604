#!/usr/bin/env bash
# Builds and tests everything, or the steps named: scripts/test.sh [STEP...]; scripts/test.sh --list names them.
# Each step prints its time against its budget at the end; the last line is "tests: N passed, N failed, N skipped".
set -uo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
exec </dev/null

# step: budget in seconds on 2 cores, compiler cache empty
declare -A budget=(
  [setup]=300 [format]=20 [lint]=420 [gates]=30 [release]=600 [audit]=240 [segment128]=420 [planted_fault]=300
  [asan]=600 [tsan]=420 [packaging]=240 [no_tbb]=240 [python]=720 [docs]=30 [quickstart]=120 [cuda]=5)
order=(setup format lint gates release audit segment128 planted_fault asan tsan packaging no_tbb python docs quickstart cuda)

if [ "${1:-}" = --list ]; then
  for step in "${order[@]}"; do printf '%-14s budget %4d s\n' "$step" "${budget[$step]}"; done
  exit 0
fi
steps=("$@")
[ $# -gt 0 ] || steps=("${order[@]}")
for step in "${steps[@]}"; do
  [ -n "${budget[$step]:-}" ] || die "unknown step $step (known: ${order[*]})"
done

counts=$(mktemp)
trap 'rm -f "$counts"' EXIT
count() { echo "$1 $2 ${3:-0}" >>"$counts"; }  # passed failed skipped
release=build/cpu-release
cake=$release/tools/cake/cake

sources() { git ls-files --cached --others --exclude-standard "$@" | sort -u | while read -r f; do [ -f "$f" ] && echo "$f"; done; }

# run_ctest PRESET ARGUMENT...: runs ctest and adds its numbers to the count.
run_ctest() {
  local preset=$1 log status=0
  shift
  log=build/$preset/ctest.log
  ctest --preset "$preset" -j "$CAKE_JOBS" --no-tests=error "$@" >"$log" 2>&1 || status=$?
  # Passed cases are many; what failed or was skipped is worth a line.
  grep -vE ' Passed |^ +Start ' "$log" || true
  local failed total skipped
  total=$(sed -n 's/.* tests failed out of \([0-9]*\)$/\1/p' "$log" | tail -n 1)
  failed=$(sed -n 's/.*, \([0-9]*\) tests failed out of.*/\1/p' "$log" | tail -n 1)
  skipped=$(grep -c '\*\*\*Skipped' "$log" || true)
  if [ -n "$total" ]; then
    count $((total - failed - skipped)) "$failed" "$skipped"
  else
    count 0 1
  fi
  return "$status"
}

step_setup() { scripts/setup.sh; }

step_format() {
  sources '*.h' '*.cc' | xargs clang-format-14 --dry-run -Werror
  echo "clang-format: $(sources '*.h' '*.cc' | wc -l) files"
  count 1 0
}

# clang-tidy takes the files in order of interest until its time is used up, and says what it did not reach.
step_lint() {
  sources '*.sh' .ci/run | xargs shellcheck -x
  sources '*.py' | xargs python3 -c 'import ast, sys; [ast.parse(open(f).read(), f) for f in sys.argv[1:]]'
  count 2 0
  configure_release
  local base=HEAD~1 limit=$((SECONDS + 330)) list status=0
  git rev-parse -q --verify origin/HEAD >/dev/null && base=$(git merge-base origin/HEAD HEAD)
  git rev-parse -q --verify "$base" >/dev/null || base=HEAD
  list=$({ git diff --name-only "$base" -- 'src/*.cc' 'tools/*.cc' 'examples/*.cc' 'benchmarks/*.cc'
           sources 'src/*.cc' 'examples/*.cc' 'tools/*.cc'; } | awk '!seen[$0]++')
  local todo=() file
  for file in $list; do
    # clang 14 does not know the processor levels that this file asks for.
    [ "$file" != src/core/cpu_isa.cc ] || continue
    [ -f "$file" ] && grep -q "\"file\": \".*/$file\"" "$release/compile_commands.json" && todo+=("$file")
  done
  local done_files=0 at
  for ((at = 0; at < ${#todo[@]}; at += CAKE_JOBS)); do
    if [ "$SECONDS" -ge "$limit" ]; then break; fi
    printf '%s\n' "${todo[@]:at:CAKE_JOBS}" |
      xargs -P "$CAKE_JOBS" -n 1 clang-tidy-14 --quiet --extra-arg=-Wno-unknown-warning-option -p "$release" \
        2>build/clang-tidy.err || status=1
    done_files=$((at + CAKE_JOBS < ${#todo[@]} ? at + CAKE_JOBS : ${#todo[@]}))
  done
  [ "$status" -eq 0 ] || cat build/clang-tidy.err
  echo "clang-tidy: $done_files of ${#todo[@]} files checked within the budget"
  [ "$done_files" -eq "${#todo[@]}" ] || printf 'not reached: %s\n' "${todo[@]:done_files}"
  [ "$status" -eq 0 ] && count 1 0
  return "$status"
}

configure_release() {
  cmake --preset cpu-release >build/.configure-cpu-release.log 2>&1 || { cat build/.configure-cpu-release.log; return 1; }
}

step_gates() {
  configure_release
  run_ctest cpu-release -L source_gate
}

step_release() {
  build cpu-release
  run_ctest cpu-release -LE 'source_gate|packaging'
}

step_audit() {
  build cpu-release cake
  "$cake" audit cake_kda_det_train
  "$cake" audit cake_kda_nondet_train  # reports what differs and fails nothing for it
  "$cake" audit cake_kda_det_train_kcp
  "$cake" audit cake_kda_nondet_train_kcp
  count 4 0
}

step_segment128() {
  build cpu-segment128
  run_ctest cpu-segment128 -LE 'gate|packaging'
}

# A build whose order depends on the schedule: the audit must say so with exit code 1, not merely fail.
step_planted_fault() {
  build cpu-planted-fault cake
  local status module
  for module in cake_kda_det_train cake_kda_det_train_kcp; do
    status=0
    build/cpu-planted-fault/tools/cake/cake audit "$module" >build/planted-fault.log || status=$?
    tail -n 5 build/planted-fault.log
    [ "$status" -eq 1 ] || { echo "the audit of the planted fault in $module ended with $status, expected 1"; return 1; }
    echo "the audit found the planted fault in $module"
  done
  count 2 0
}

step_asan() {
  build asan cake_core_tests kda_reference_test kda_accuracy_test kda_bits_test kda_arguments_test kda_memory_test \
    kda_rig_test kda_plan_test kda_kcp_test kda_kcp_accuracy_test kda_kcp_arguments_test kda_kcp_memory_test
  # Leaks are looked for too; a child process that ends inside a test is not one.
  run_ctest asan -L '^(core|kda)$'
}

# Threads, ranks, and one program of each kind that runs them; the kernels themselves are covered above.
step_tsan() {
  build tsan parallel_test communicator_test kda_plan_test kda_rig_test kda_kcp_test kda_kcp_arguments_test
  run_ctest tsan -R "ParallelFor|CommThreads|CommAgreement|CommCallbacks|KdaPlan|KdaRig|KdaOffsetsFuzz|KdaKcp" -E Mpi
}

step_packaging() {
  build cpu-release
  run_ctest cpu-release -L packaging
}

# Without oneTBB the library has threads of its own and gives the same bits.
step_no_tbb() {
  build cpu-no-tbb cake_core_tests cake
  run_ctest cpu-no-tbb -L core
  build cpu-release cake
  local with without
  with=$(train_digest "$cake")
  without=$(train_digest build/cpu-no-tbb/tools/cake/cake)
  echo "with oneTBB    $with"
  echo "without oneTBB $without"
  [ -n "$with" ] && [ "$with" = "$without" ]
  count 1 0
}

train_digest() {
  "$1" train --text docs --steps 2 --batch-tokens 256 --layers 1 --width 64 --heads 1 --threads 2 --json |
    python3 -c 'import json, sys; print(json.loads(sys.stdin.read().strip().splitlines()[-1])["digest"])'
}

# The wheel, built from the sdist, in a new environment; tests run on what is installed, from outside the tree.
step_python() {
  scripts/python_env.sh
  local root=$CAKE_ROOT log=$CAKE_ROOT/build/pytest.log status=0 passed failed skipped
  local python=$root/build/venv/bin/python
  sources '*.py' | xargs "$python" -m ruff check -q
  "$python" tests/packaging/python_dist.py build/dist
  count 2 0
  (cd / && "$python" -B -m pytest -q -p no:cacheprovider -c "$root/pyproject.toml" --timeout 300 "$root/tests/python") \
    >"$log" 2>&1 || status=$?
  tail -n 30 "$log"
  passed=$(sed -n 's/.*\b\([0-9]\+\) passed.*/\1/p' "$log" | tail -n 1)
  failed=$(sed -n 's/.*\b\([0-9]\+\) failed.*/\1/p' "$log" | tail -n 1)
  skipped=$(sed -n 's/.*\b\([0-9]\+\) skipped.*/\1/p' "$log" | tail -n 1)
  count "${passed:-0}" "${failed:-0}" "${skipped:-0}"
  [ "$status" -eq 0 ] && [ "${passed:-0}" -gt 0 ]
}

step_docs() {
  rm -rf build/doxygen
  mkdir -p build/doxygen
  doxygen Doxyfile
  count 1 0
}

step_quickstart() {
  scripts/quickstart.sh --smoke
  count 1 0
}

step_cuda() { echo "No package of this version has CUDA code: there was nothing to compile for a GPU."; }

use_ccache
summary=()
for step in "${steps[@]}"; do
  say "$step"
  before=$SECONDS
  failures_before=$(awk '{s += $2} END {print s + 0}' "$counts")
  (set -euo pipefail; "step_$step")
  status=$?
  took=$((SECONDS - before))
  failures=$(awk '{s += $2} END {print s + 0}' "$counts")
  word=ok
  if [ "$status" -ne 0 ]; then
    word=FAILED
    [ "$failures" -gt "$failures_before" ] || count 0 1
  fi
  [ "$took" -le "${budget[$step]}" ] || word="$word (over budget)"
  summary+=("$(printf '%-14s %5d s of %4d s  %s' "$step" "$took" "${budget[$step]}" "$word")")
done

say "times"
printf '%s\n' "${summary[@]}"
printf '%-14s %5d s of 3600 s\n' total "$SECONDS"
read -r passed failed skipped < <(awk '{p += $1; f += $2; s += $3} END {print p + 0, f + 0, s + 0}' "$counts")
echo "tests: $passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
