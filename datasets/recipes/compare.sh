#!/bin/sh
# compare.sh text|video OUT TRACE... [-- OPTIONS of lacuna replay, such as --layers 3 --heads 0]
#
# Every method that has a budget, at the densities 0.1, 0.2 and 0.3 of every head, beside the best
# masks of every unit at the same densities (doc/comparison.md). Writes OUT/records.jsonl (a stopped
# run goes on), OUT/table.txt, OUT/ranking.txt, OUT/pareto.svg and OUT/bounds.txt. LACUNA is the
# program; TARGETS are the densities.
set -eu
if [ $# -lt 3 ]; then
    echo "usage: compare.sh text|video OUT TRACE... [-- OPTIONS]" >&2
    exit 2
fi
LACUNA=${LACUNA:-lacuna}
TARGETS=${TARGETS:-0.1,0.2,0.3}
here=$(cd "$(dirname "$0")" && pwd)
kind=$1
out=$2
shift 2

# A setting per line. Defaults that stand in the way of a density are moved and nothing else:
# min_budget and min_len keep a part dense whatever the budget is, theta=-1 lets SpargeAttn judge
# blocks that it would keep for being dissimilar, warm-up steps and layers are dense.
case $kind in
text)
    methods="streaming longformer bigbird:preset=sample sparse-transformer:pattern=local
        minference minference:pattern=block flexprefill:min_budget=0 xattention
        spargeattn:theta=-1:pv=off spargeattn:theta=-1:pv=off:select=topk sale sampleattention
        fg-attn:mode=pooled fg-attn:refresh=1 hash-sparse qk-sparse:select=knorm
        hyperattention:min_len=256:block=64"
    units="64x1 64x32 64x64 128x64 128x128"
    ;;
video)
    methods="streaming longformer bigbird minference minference:pattern=block
        flexprefill:min_budget=0 xattention spargeattn:theta=-1:pv=off
        spargeattn:theta=-1:pv=off:select=topk fg-attn:mode=pooled fg-attn:refresh=1
        radial:dense_layers=0:dense_steps=0 svg1:dense_layers=0:dense_steps=0
        svg2:dense_layers=0:dense_steps=0:cold=1 chipmunk:dense_layers=0:local_voxels=0:random_keys=0
        hash-sparse qk-sparse:select=knorm hyperattention:min_len=0:block=64"
    units="64x1 64x64 128x64 128x128"
    ;;
*)
    echo "compare.sh: '$kind' is neither text nor video" >&2
    exit 2
    ;;
esac

# The traces, and what follows -- for replay. Dense attention is the reference in every record.
run()
{
    "$LACUNA" replay "$@" -o "$out"
}
traces=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    traces="$traces $1"
    shift
done
[ $# -eq 0 ] || shift
settings=
for m in $methods; do
    settings="$settings -m $m@density_elem=$TARGETS"
done
settings="$settings -m oracle:kind=mean@density_elem=$TARGETS"
settings="$settings -m oracle:kind=stripes@density_elem=$TARGETS"
for u in $units; do
    settings="$settings -m oracle:kind=block:scope=head:unit=$u@density_elem=$TARGETS"
done
# shellcheck disable=SC2086 # words on purpose
run $traces $settings "$@"

"$LACUNA" analyze "$out" --pivot target --columns density_elem,cra_mean,err_l1_rel >"$out/table.txt"
"$LACUNA" analyze "$out" --table ranking >"$out/ranking.txt"
"$LACUNA" plot pareto "$out" -o "$out/pareto.svg" --force
"$LACUNA" analyze "$out" --group method,params,trace,step,branch,layer,head \
    --columns density_elem,density_tile,cra_mean,err_l1_rel,budget_target -f csv |
    awk -f "$here/bounds.awk" >"$out/bounds.txt"
cat "$out/table.txt" "$out/bounds.txt"
