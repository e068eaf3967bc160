#!/bin/sh
# compare.sh text|video OUT TRACE... [-- OPTIONS of lacuna replay, such as --layers 3 --heads 0]
#
# Every method that has a budget, at the densities 0.1, 0.2 and 0.3 of every head, beside the best
# masks of every unit at the same densities (doc/results.md). Writes records into folders of OUT
# (a stopped run goes on), and OUT/table.txt, OUT/ranking.txt, OUT/bounds.txt and OUT/pareto.svg.
# Variables: LACUNA, the program; TARGETS, the densities; PROCESSES, how many settings run at once: a
# replay has a thread per head, so that few heads leave processors idle. Paths without blanks.
set -eu
if [ $# -lt 3 ]; then
    echo "usage: compare.sh text|video OUT TRACE... [-- OPTIONS]" >&2
    exit 2
fi
LACUNA=${LACUNA:-lacuna}
TARGETS=${TARGETS:-0.1,0.2,0.3}
PROCESSES=${PROCESSES:-1}
here=$(cd "$(dirname "$0")" && pwd)
kind=$1
out=$2
shift 2

# Defaults that stand in the way of a density are moved, and nothing else: min_budget and min_len keep
# a part dense whatever the budget is, theta=-1 lets SpargeAttn judge blocks that it would keep for
# being dissimilar, pv=off leaves out its filter of products, warm-up steps and layers are dense.
# Chipmunk is dense in some steps, so that no density of all of them can be met: its own shares.
more=
case $kind in
text)
    slow="hyperattention:min_len=256:block=64 fg-attn:refresh=1 longformer sale"
    methods="streaming bigbird:preset=sample minference minference:pattern=block
        flexprefill:min_budget=0 xattention spargeattn:theta=-1:pv=off
        spargeattn:theta=-1:pv=off:select=topk sampleattention fg-attn:mode=pooled hash-sparse
        qk-sparse:select=knorm"
    units="64x1 64x32 64x64 128x64 128x128"
    ;;
video)
    slow="hyperattention:min_len=0:block=64 fg-attn:refresh=1 longformer
        svg2:dense_layers=0:dense_steps=0:cold=1"
    methods="streaming bigbird minference minference:pattern=block flexprefill:min_budget=0 xattention
        spargeattn:theta=-1:pv=off spargeattn:theta=-1:pv=off:select=topk fg-attn:mode=pooled
        radial:dense_layers=0:dense_steps=0 svg1:dense_layers=0:dense_steps=0 hash-sparse
        qk-sparse:select=knorm"
    units="64x1 64x64 128x64 128x128"
    more="chipmunk:dense_layers=0:local_voxels=0:random_keys=0:redraw=0:top_keys=$TARGETS"
    ;;
*)
    echo "compare.sh: '$kind' is neither text nor video" >&2
    exit 2
    ;;
esac

traces=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    traces="$traces $1"
    shift
done
[ $# -eq 0 ] || shift
options=$*
mkdir -p "$out"

# One setting per line, those that take longest first.
{
    for t in $(echo "$TARGETS" | tr , ' '); do
        for m in $slow; do
            echo "$m@density_elem=$t"
        done
        echo "oracle:kind=mean@density_elem=$t"
        for u in $units; do
            echo "oracle:kind=block:scope=head:unit=$u@density_elem=$t"
        done
        echo "oracle:kind=columns@density_elem=$t"
        for m in $methods; do
            echo "$m@density_elem=$t"
        done
    done
    for m in $more; do
        echo "$m"
    done
} >"$out/settings"

if [ "$PROCESSES" -gt 1 ]; then
    export LACUNA out traces options
    # shellcheck disable=SC2016 # expanded by the inner shell
    awk '{ print NR, $0 }' "$out/settings" |
        xargs -P "$PROCESSES" -n 2 sh -c '"$LACUNA" replay $traces -m "$2" -o "$out/run-$1" -j 1 $options' sh
else
    # shellcheck disable=SC2086,SC2046 # words on purpose
    "$LACUNA" replay $traces $(sed 's/^/-m /' "$out/settings") -o "$out/run-all" $options
fi

"$LACUNA" analyze "$out"/run-* --where 'params=*@*' --pivot target \
    --columns density_elem,cra_mean,err_l1_rel >"$out/table.txt"
"$LACUNA" analyze "$out"/run-* --table ranking >"$out/ranking.txt"
"$LACUNA" plot pareto "$out"/run-* -o "$out/pareto.svg" --force ||
    echo "compare.sh: no figure" >&2
"$LACUNA" analyze "$out"/run-* --group method,params,trace,step,branch,layer,head \
    --columns density_elem,density_tile,cra_mean,err_l1_rel,budget_target -f csv |
    awk -f "$here/bounds.awk" >"$out/bounds.txt"
cat "$out/table.txt" "$out/bounds.txt"
