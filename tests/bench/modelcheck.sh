#!/bin/sh
# modelcheck.sh - the cost model (doc/cost-model.md) beside a GPU at hand.
#
#   LACUNA=build/lacuna sh tests/bench/modelcheck.sh TRACE GPU [METHOD...]
#
# Replays the trace on the GPU and, with the same masks where they are static, on the CPU. Prints how
# many counts of work differ (masks chosen from rounded operands may), and predicted beside measured
# times of calls with their quotient. Exits with 1 where counts of `streaming` differ.
set -eu
LACUNA=${LACUNA:-build/lacuna}
trace=$1 gpu=$2
shift 2
[ $# -gt 0 ] || set -- dense xattention flexprefill minference sampleattention
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for m in streaming:sink=64:window=1024 "$@"; do
    "$LACUNA" replay "$trace" -m "$m" --backend cuda -o "$out/gpu" --force -q
    "$LACUNA" replay "$trace" -m "$m" --precision f32 -o "$out/cpu" --force -q
    same=0
    "$LACUNA" compare "$out/gpu" "$out/cpu" --metrics 'work_*' --ignore backend,precision || same=$?
    [ "$m" != streaming:sink=64:window=1024 ] || first=$same
    "$LACUNA" analyze "$out/gpu" --gpu "$gpu" --beside measured
done
exit "$first"
