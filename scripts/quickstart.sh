#!/usr/bin/env bash
# From a fresh clone to a trained language model: installs what is missing, builds, trains on the licence texts that every
# Debian has, trains twice on different numbers of threads to show that the bits are the same, and once more with the
# nondeterministic package beside them.
#   scripts/quickstart.sh           the whole thing, a few minutes
#   scripts/quickstart.sh --smoke   a few steps only, for the tests
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

smoke=()
check_steps=12
case "${1:-}" in
  "") ;;
  --smoke) smoke=(--steps 6) check_steps=4 ;;
  *) die "unknown argument $1 (known: --smoke)" ;;
esac

say "Installing what is missing"
scripts/setup.sh
use_ccache

say "Building (build/cpu-release)"
build cpu-release cake
cake=build/cpu-release/tools/cake/cake

say "This machine"
"$cake" info

out=runs/quickstart
mkdir -p "$out"
# The default text is this folder (a text reached through several links counts once).
text=/usr/share/common-licenses
[ -d "$text" ] || die "$text is missing (Debian package base-files); train on your own text: $cake train --text PATH"

# field NAME: a field of the last line of standard input, numbers shortened.
field() {
  python3 -c 'import json, sys
value = json.loads(sys.stdin.read().strip().splitlines()[-1])[sys.argv[1]]
print(f"{value:.4g}" if isinstance(value, float) else value)' "$1"
}

losses() {
  local line
  line=$(cat)
  echo "$(field loss_first <<<"$line") -> $(field loss_last <<<"$line")"
}

say "Training on $text with the defaults of cake train"
"$cake" train --report "$out" --checkpoint "$out/model.ckpt" "${smoke[@]}" --json >"$out/last.json"
echo "loss $(field loss_first <"$out/last.json") -> $(field loss_last <"$out/last.json") nats per byte," \
  "$(field tokens_per_s <"$out/last.json") tokens/s"

say "The same $check_steps steps on 2 threads and on 1"
declare -A result digest
for threads in 2 1; do
  result[$threads]=$("$cake" train --steps "$check_steps" --threads "$threads" --json)
  digest[$threads]=$(field digest <<<"${result[$threads]}")
  echo "--threads $threads: ${digest[$threads]}"
done
[ "${digest[1]}" = "${digest[2]}" ] || die "the digests differ: the parameters depend on the number of threads"
echo "equal: every bit of the parameters is the same"

say "The same $check_steps steps with each package, on 2 threads"
result[nondet]=$("$cake" train --steps "$check_steps" --threads 2 --package cake_kda_nondet_train --json)
row() { printf '%-22s  %-24s  %s\n' "$@"; }
row package "loss, nats per byte" parameters
row cake_kda_det_train "$(losses <<<"${result[2]}")" "${digest[2]}"
row cake_kda_nondet_train "$(losses <<<"${result[nondet]}")" "$(field digest <<<"${result[nondet]}")"
echo "The digest of the nondet package is not promised: it may equal the other one or differ, from run to run."

say "Done"
cat <<END
Report:      $out/loss.svg (loss curve), $out/log.json (losses, digests), $out/model.ckpt (checkpoint)
Your text:   $cake train --text PATH --report DIR     (a file or a folder)
More:        $cake --help, README.md
END
