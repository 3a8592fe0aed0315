#!/usr/bin/env bash
# Usage: benchmarks/kernels/device.sh REVISION STEP...
# Runs steps on this machine's GPU and writes a record for each; exits 1 if one failed. Steps, with the time they may take:
#   check       every artifact by its manifest alone: values, guards, status words              180 s
#   gate        the lab's conformance gate, every case                                          180 s
#   sanitize    one odd shape of every artifact under each tool of compute-sanitizer            540 s
#   twins       symbolic kernels beside twins with fixed dimensions (static_twins.py)           150 s
#   products    every schedule of every product of four models at every class of rows           300 s
#   attention   decode with every number of splits, and prefill                                 210 s
#   sampling    greedy, top-k with top-p, all parameters, log-probabilities; small kernels       60 s
# REVISION is that of the sources and of the lab. check, gate and twins fit ten minutes, and the last three do.
#   LAB    the lab's binary               [target/release/oxide-infer-lab]
#   TWINS  what static_twins.py wrote     [kernels/tilelang/.build/twins]
#   OUT    folder of the records          [/tmp/oxide-infer-records]
set -uo pipefail
revision=${1:?the source revision}
shift
root=$(realpath "$(dirname "$0")/../..")
lab=${LAB:-$root/target/release/oxide-infer-lab} twins=${TWINS:-$root/kernels/tilelang/.build/twins}
out=${OUT:-/tmp/oxide-infer-records}
mkdir -p "$out"
check=(python3 -u "$root/kernels/tilelang/gpu_check.py" --revision "$revision")
failed=()

# NAME SECONDS COMMAND...: a step, its log in the folder, its last lines here.
step() {
    local name=$1 seconds=$2 began=$SECONDS status=0
    shift 2
    timeout --kill-after=10 "$seconds" "$@" >"$out/$name.log" 2>&1 || status=$?
    tail -n "${LINES_SHOWN:-25}" "$out/$name.log"
    echo "== $name: status $status in $((SECONDS - began)) s"
    [ "$status" = 0 ] || failed+=("$name")
}

for name in "$@"; do
    case $name in
    check) step check 180 "${check[@]}" --skip-timing --budget 170 --json "$out/check.json" ;;
    gate) step gate 180 "$lab" gates conformance --revision "$revision" --record "$out/gate.json" ;;
    sanitize)
        step sanitize 560 python3 -u "$root/benchmarks/kernels/sanitize.py" --lab "$lab" --revision "$revision" \
            --json "$out/sanitize.json" --seconds 60 --budget 480
        ;;
    twins)
        step twins 150 python3 -u "$root/kernels/tilelang/twin_check.py" --twins "$twins" --revision "$revision" \
            --budget 130 --json "$out/twins.json"
        ;;
    products) LINES_SHOWN=90 step products 300 "${check[@]}" --skip-checks --time products --budget 285 --json "$out/products.json" ;;
    attention)
        LINES_SHOWN=70 step attention 210 "${check[@]}" --skip-checks --time decodes --time prefills --budget 195 \
            --json "$out/attention.json"
        ;;
    sampling)
        LINES_SHOWN=45 step sampling 60 "${check[@]}" --skip-checks --time samples --time small --budget 50 --json "$out/sampling.json"
        ;;
    *) echo "no step $name" && failed+=("$name") ;;
    esac
done
echo "records in $out; failed: ${failed[*]:-none}"
[ ${#failed[@]} = 0 ]
