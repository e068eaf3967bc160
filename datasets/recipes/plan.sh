#!/bin/sh
# plan.sh OUT FROM.h5 OTHER.h5 [OPTIONS of lacuna replay]
#
# A plan that is chosen on one prompt and replayed on another, beside the best single setting
# (doc/smollm2.md). Writes OUT/plan.json and OUT/plan.txt. LACUNA is the program, LIMIT the limit, METHODS
# other settings (-m METHOD ...).
set -eu
if [ $# -lt 3 ]; then
    echo "usage: plan.sh OUT FROM.h5 OTHER.h5 [OPTIONS]" >&2
    exit 2
fi
LACUNA=${LACUNA:-lacuna}
LIMIT=${LIMIT:-err_l1_rel<=0.05}
out=$1
from=$2
other=$3
shift 3
mkdir -p "$out"

# shellcheck disable=SC2086 # words on purpose
"$LACUNA" replay "$from" "$other" ${METHODS:--m dense:map=0 \
    -m streaming:window=64,256,1024,4096 \
    -m minference:pattern=block:top=4,8,16,32,64 \
    -m xattention:tau=0.5,0.7,0.9,0.97 \
    -m spargeattn:theta=-1:pv=off:select=topk:topk=0.05,0.1,0.2,0.4,0.7 \
    -m sale:tau=0.1,0.02,0.004,0.0008 \
    -m sampleattention:alpha_c=0.8,0.9,0.95,0.98 \
    -m fg-attn:mode=pooled:c1=2,0.5,0.1,0.02} -o "$out/run" "$@"
"$LACUNA" choose "$out/run" --where "trace=$("$LACUNA" trace info "$from" --json |
    sed -n 's/.*"content_id": "\([^"]*\)".*/\1/p' | head -n 1)" --limit "$LIMIT" -o "$out/plan.json" --force
"$LACUNA" replay "$from" "$other" -m "plan:file=$out/plan.json" -o "$out/planned" "$@"
"$LACUNA" analyze "$out/run" "$out/planned" --table plan >"$out/plan.txt"
cat "$out/plan.txt"
