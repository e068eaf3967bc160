#!/bin/sh
# results.sh OUT cpu|cuda
#
# What sparse attention does to a language model, SmolLM2-135M-Instruct by default (doc/smollm2.md): all
# methods at their defaults and at the densities 0.1, 0.2 and 0.3, as a replay and inside the model, and a
# plan that is chosen on prose and tried on code. Writes records and tables (*.txt) into OUT; a stopped run
# goes on. cuda: 8192 tokens, 75 needles, minutes on an H200; cpu: 2048 tokens, a replay of five layers.
# Variables: LACUNA, the program; MODEL, a checkpoint; PROSE, CODE, texts of 8192 and 4096 tokens.
set -eu
if [ $# -ne 2 ]; then
    echo "usage: results.sh OUT cpu|cuda" >&2
    exit 2
fi
export LACUNA="${LACUNA:-lacuna}"
here=$(cd "$(dirname "$0")" && pwd)
out=$1
model=${MODEL:-$(sh "$here/get-smollm2.sh")}
code=${CODE:-$here/../prompts/core.txt}
prose=${PROSE:-$out/prose.txt}
mkdir -p "$out"
[ -n "${PROSE:-}" ] || cat /usr/share/common-licenses/GPL-3 /usr/share/common-licenses/GFDL-1.3 >"$prose"
case $2 in
cpu) n=2048 half=2048 needles=1K,2K trials=1 layers="--layers 2,8,14,20,26" in='' beside="--precision f32" ;;
cuda) n=8192 half=4096 needles=2K,4K,8K trials=5 layers='' in="--device cuda" beside="--backend cuda --samples 0" ;;
*) echo "results.sh: '$2' is neither cpu nor cuda" >&2 && exit 2 ;;
esac

defaults="dense sageattention streaming:sink=4:window=1024 streaming:sink=0:window=1024 sale sampleattention
    spargeattn spargeattn:sink=1 spargeattn:theta=-1:tau=0.9 xattention flexprefill minference
    minference:v=500:s=1000 fg-attn:mode=pooled hyperattention qk-sparse hash-sparse longnet longformer
    bigbird:preset=sample sparse-transformer oracle oracle:kind=block:unit=64x64"
budgets="streaming:sink=4 sale sampleattention spargeattn:theta=-1 spargeattn:theta=-1:sink=1 xattention
    flexprefill:min_budget=128 minference fg-attn:mode=pooled oracle"
asked="streaming:sink=4:window=1024 sale sampleattention spargeattn spargeattn:sink=1 spargeattn:theta=-1:tau=0.9
    xattention flexprefill minference:v=500:s=1000 fg-attn:mode=pooled oracle"
choices="streaming:sink=4:window=64,256,1024 minference:pattern=block:top=4,8,16,32 xattention:tau=0.5,0.7,0.9,0.97
    spargeattn:theta=-1:tau=0.7,0.9,0.98 spargeattn:theta=-1:sink=1:tau=0.7,0.9,0.98 sale:tau=0.1,0.02,0.004
    sampleattention:alpha_c=0.8,0.9,0.95 flexprefill:gamma=0.8,0.9,0.95:min_budget=128
    fg-attn:mode=pooled:c1=2,0.5,0.1,0.02"

# The words behind $1, each with -m before it and $1 behind it.
each() {
    behind=$1
    shift
    for m in "$@"; do echo "-m $m$behind"; done
}
at=@density_elem=0.1,0.2,0.3:per=model

# shellcheck disable=SC2086,SC2046 # words on purpose, to the end of the file
{
    capture() {
        [ -e "$out/$1.h5" ] || "$LACUNA" capture --model "$model" --prompt "$2" --tokens "$3" $layers $in -o "$out/$1.h5"
    }
    replay() { d=$1 && shift && "$LACUNA" replay "$@" $beside -o "$out/$d"; }
    inside() { d=$1 && shift && "$LACUNA" eval --model "$model" "$@" $in -o "$out/$d"; }
    table() { f=$1 && shift && "$LACUNA" analyze "$@" >"$out/$f.txt" && cat "$out/$f.txt"; }

    capture prose "$prose" $n
    inside text --task "$prose" -n $n --windows 1 $(each "" $defaults)
    replay beside "$out/prose.h5" $(each "" $defaults)
    inside needles --task needle -n $needles --trials $trials $(each "" $asked)
    [ "$2" = cpu ] ||
        "$LACUNA" replay "$out/prose.h5" $(each "" $defaults) --backend cuda --samples 5 --layers 2,8,14,20,26 -o "$out/time"

    # A plan that is chosen on prose, replayed on code and tried inside the model on both.
    capture prose-half "$prose" $half
    capture code "$code" $half
    METHODS=$(each "" dense:map=0 $choices) sh "$here/plan.sh" "$out/plan" "$out/prose-half.h5" "$out/code.h5" $beside
    for t in "$prose" "$code"; do
        inside planned --task "$t" -n $half --windows 1 -m "plan:file=$out/plan/plan.json" $(each "" $choices)
    done

    # One parameter for all heads, searched in the replay: the slow part.
    replay found "$out/prose.h5" $(each $at $budgets)
    inside equal --task "$prose" -n $n --windows 1 $(each $at $budgets) --found "$out/found"

    likelihood=density_elem,ppl,kl_mean,top1_agree
    table beside "$out/beside" --columns density_elem,cra_mean,cra_p1,err_l1_rel
    table text "$out/text" --table eval --columns $likelihood
    table inside "$out/beside" "$out/text" --table inside
    table needles "$out/needles" --group tokens,method,params --columns needle_acc,answer_nll,density_elem
    table planned "$out/planned" --table eval --group task,method,params --columns $likelihood
    table found "$out/found" --pivot target --columns density_elem,cra_mean,err_l1_rel
    table equal "$out/equal" --table eval --columns $likelihood
    [ "$2" = cpu ] || table time "$out/time" --table time
}
