#!/usr/bin/env bash
# Usage: benchmarks/parity/run.sh PROFILE RECORD [OPTIONS OF reference.py]
#        MODEL=FILE.gguf benchmarks/parity/run.sh smollm2-135m RECORD
# Runs transformers and the engine over the same cases on this machine and writes the record; exits 1 if parity is broken.
# For smollm2-135m the weights and the cases are real: MODEL's, and those of testdata/cases/smollm2.json.
#   LAB       the lab's binary          [target/release/oxide-infer-lab]
#   REVISION  its source revision       [git rev-parse HEAD]
#   DEVICE    cuda, cuda:N or cpu       [cuda]
#   MODES     the first is what the bits of the others are compared with  [alone eager batched chunked preempted warm]
#   SCRATCH   folder for up to 20 GB    [/dev/shm/oxide-infer-parity]
set -euo pipefail
profile=$1 record=$(realpath "$2")
shift 2
# Paths of the record are those of the repository.
root=$(realpath "$(dirname "$0")/../..")
lab=$(realpath "${LAB:-$root/target/release/oxide-infer-lab}")
cd "$root"
here=benchmarks/parity
revision=${REVISION:-$(git -C "$root" rev-parse HEAD)}
device=${DEVICE:-cuda}
scratch=${SCRATCH:-/dev/shm/oxide-infer-parity}/$profile
rm -rf "$scratch"
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch"

if [ "$profile" = smollm2-135m ]; then
    model=${MODEL:?the path of SmolLM2-135M-Instruct.Q4_1.gguf}
    "$lab" export --model "$model" --config "$here/profiles/$profile/config.json" --out "$scratch/model"
    python3 "$here/reference.py" --model "$scratch/model" --oracle testdata/cases/smollm2.json \
        --device "$device" --out "$scratch" "$@"
else
    model=$scratch/model
    python3 "$here/reference.py" --profile "$profile" --device "$device" --out "$scratch" "$@"
fi

logits=()
for mode in ${MODES:-alone eager batched chunked preempted warm}; do
    "$lab" parity --model "$model" --cases "$scratch/cases.json" --mode "$mode" --device "$device" \
        --logits "$scratch/$mode.bin"
    logits+=(--logits "$mode=$scratch/$mode.bin")
done
python3 "$here/compare.py" --reference "$scratch" --device "$device" --revision "$revision" --record "$record" \
    "${logits[@]}"
