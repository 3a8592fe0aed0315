#!/usr/bin/env bash
# Usage: benchmarks/evidence.sh REVISION OUT
# Makes the records of gates, parity and sanitizers of one build on this machine's GPU: what needs no quiet runs side by side, the
# rest alone after it. On an H200 with 16 cores the same steps took five minutes, with 51 artifacts to sanitize. Exits 1 if a step failed; its log is OUT/logs/STEP.log.
#   LAB, BINARY  the lab's and the server's release binary                    [target/release/oxide-infer-lab, .../oxide-infer]
#   MODEL        SmolLM2-135M-Instruct.Q4_1.gguf, for its parity              [models/SmolLM2-135M-Instruct.Q4_1.gguf]
#   PROVOKER     libprovoke_fault.so, an example of oxide-infer-cuda          [target/release/examples/libprovoke_fault.so]
#   SANITIZE     artifacts for compute-sanitizer, words; "all" for every one  [all]
#   KV_MIB       memory of keys and values for each of six engines at once    [4096]
#   SCRATCH      folder for a folder of up to 60 GB                           [/dev/shm]
set -uo pipefail
root=$(realpath "$(dirname "$0")/..")
REVISION=${1:?the source revision}
OUT=$(realpath -m "${2:?folder of the records}")
LAB=$(realpath "${LAB:-$root/target/release/oxide-infer-lab}")
BINARY=$(realpath "${BINARY:-$root/target/release/oxide-infer}")
MODEL=$(realpath "${MODEL:-$root/models/SmolLM2-135M-Instruct.Q4_1.gguf}")
PROVOKER=$(realpath "${PROVOKER:-$root/target/release/examples/libprovoke_fault.so}")
KV_MIB=${KV_MIB:-4096}
SCRATCH=$(mktemp -d -p "${SCRATCH:-/dev/shm}" oxide-infer-evidence.XXXX)
cd "$root" || exit 1
WHOLE="qwen2.5-1.5b smollm2-135m"
LAYERS="qwen2.5-0.5b qwen2.5-7b qwen3-0.6b qwen3-4b llama-3.2-1b llama-3.1-8b mistral-7b"
export REVISION OUT LAB MODEL KV_MIB SCRATCH WHOLE
mkdir -p "$OUT/logs"
rm -f "$OUT"/logs/*.failed
trap 'rm -rf "$SCRATCH"' EXIT

# NAME SECONDS COMMAND...
step() {
    local name=$1 seconds=$2 began=$SECONDS status=0
    shift 2
    timeout --kill-after=10 "$seconds" "$@" >"$OUT/logs/$name.log" 2>&1 || status=$?
    echo "$name: status $status in $((SECONDS - began)) s"
    [ "$status" = 0 ] || tail -n 12 "$OUT/logs/$name.log"
    [ "$status" = 0 ] || touch "$OUT/logs/$name.failed"
}
modes() { # PROFILE
    case " $WHOLE " in *" $1 "*) echo alone eager batched chunked preempted warm ;; *) echo alone batched chunked ;; esac
}
model() { # PROFILE
    if [ "$1" = smollm2-135m ]; then echo "$MODEL"; else echo "$SCRATCH/$1/model"; fi
}
reference() { # PROFILE OPTIONS...
    local profile=$1
    shift
    mkdir -p "$SCRATCH/$profile"
    step "reference-$profile" 200 python3 benchmarks/parity/reference.py --out "$SCRATCH/$profile" "$@"
}
exact_reference() {
    step export 60 "$LAB" export --model "$MODEL" --config benchmarks/parity/profiles/smollm2-135m/config.json --out "$SCRATCH/exact"
    reference smollm2-135m --model "$SCRATCH/exact" --oracle testdata/cases/smollm2.json
}
engine() { # PROFILE MODE
    step "parity-$1-$2" 120 "$LAB" parity --model "$(model "$1")" --cases "$SCRATCH/$1/cases.json" --mode "$2" --kv-mib "$KV_MIB" \
        --logits "$SCRATCH/$1/$2.bin"
}
compare() { # PROFILE
    local logits=() mode
    for mode in $(modes "$1"); do logits+=(--logits "$mode=$SCRATCH/$1/$mode.bin"); done
    step "parity-$1" 150 python3 benchmarks/parity/compare.py --reference "$SCRATCH/$1" --revision "$REVISION" \
        --record "$OUT/parity-$1.json" "${logits[@]}"
}
gates() { # NAME SECONDS OPTIONS...
    local name=$1 seconds=$2
    shift 2
    step "$name" "$seconds" "$LAB" gates "$@" --revision "$REVISION" --record "$OUT/$name.json"
}
sanitize() {
    local only=() name
    if [ "${SANITIZE:-all}" != all ]; then for name in $SANITIZE; do only+=(--only "$name"); done; fi
    step sanitize 550 python3 -u benchmarks/kernels/sanitize.py --lab "$LAB" --revision "$REVISION" --workers 10 --each 4 --seconds 90 \
        --budget 450 --json "$OUT/sanitize.json" "${only[@]}"
}
export -f step modes model engine compare

# Side by side: references, the conformance gates; then every engine of parity, and the sanitizers.
references=()
reference qwen2.5-1.5b --profile qwen2.5-1.5b & references+=($!)
for profile in $LAYERS; do reference "$profile" --profile "$profile" --layers 2 --prompts 20 & references+=($!); done
exact_reference & references+=($!)
(gates conformance-gate 200 conformance && gates native-gate 60 conformance --provider oxide_native) &
wait "${references[@]}"
sanitize &
for profile in $WHOLE $LAYERS; do for mode in $(modes "$profile"); do echo "$profile $mode"; done; done |
    xargs -P 6 -L 1 bash -c 'engine "$0" "$1"'
for profile in $WHOLE $LAYERS; do echo "$profile"; done | xargs -P 5 -L 1 bash -c 'compare "$0"'
wait

# Alone: what counts memory or takes times, and what breaks its own context.
gates engine-gate 120 engine
gates lifetime-gate 60 lifetime
gates deterministic 200 deterministic
gates fault-gate 100 fault --server "$BINARY" --provoker "$PROVOKER"

shopt -s nullglob
failed=("$OUT"/logs/*.failed)
[ ${#failed[@]} = 0 ] && echo "every step passed; records in $OUT" && exit 0
printf 'failed: %s\n' "${failed[@]##*/}"
exit 1
