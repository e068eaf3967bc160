#!/bin/sh
# results.sh OUT cpu|cuda [PART...]
#
# What sparse attention does to a language model, SmolLM2-135M-Instruct by default (doc/smollm2.md). Writes
# records and tables (*.txt) into OUT; a stopped run goes on. Parts, all of them by default:
#   text     methods at their defaults and with few to many pairs, as a replay and inside the model
#   needles  generated prompts at five depths
#   papers   tables of the papers about texts, on this model
#   plan     a plan that is chosen on prose, replayed on code and tried inside the model on both
#   decode   evictions and selections while 256 tokens follow the GPL
#   calls    times of attention calls; cuda only
# cuda: 4096 and 8192 tokens, minutes on an H200; cpu: 2048 tokens, a replay of five layers.
# Variables: LACUNA, the program; MODEL, a checkpoint; PROSE, CODE, texts of at least 8192 tokens.
set -eu
if [ $# -lt 2 ]; then
    echo "usage: results.sh OUT cpu|cuda [text|needles|papers|plan|decode|calls]..." >&2
    exit 2
fi
export LACUNA="${LACUNA:-lacuna}"
here=$(cd "$(dirname "$0")" && pwd)
out=$1
case $2 in
cpu)
    lengths=2048 needles=1K,2K trials=1 layers="--layers 2,8,14,20,26" papers=1K,2K parts="text needles papers plan decode"
    in='' beside="--precision f32" backend=''
    ;;
cuda)
    lengths="4096 8192" needles=2K,4K,8K trials=4 layers='' papers=4K,8K parts="text needles papers plan decode calls"
    in="--device cuda" beside="--backend cuda --samples 0" backend="--backend cuda"
    ;;
*) echo "results.sh: '$2' is neither cpu nor cuda" >&2 && exit 2 ;;
esac
shift 2
n=${lengths##* }
model=${MODEL:-$(sh "$here/get-smollm2.sh")}
mkdir -p "$out"
prose=${PROSE:-$out/prose.txt} code=${CODE:-$out/code.txt}
[ -n "${PROSE:-}" ] || cat /usr/share/common-licenses/GPL-3 /usr/share/common-licenses/GFDL-1.3 >"$prose"
[ -n "${CODE:-}" ] || sh "$here/../prompts/make_prompt.sh" core | head -c 65536 >"$code"

defaults="dense sageattention streaming:sink=4:window=1024 streaming:sink=0:window=1024 sale sampleattention
    spargeattn spargeattn:sink=1 spargeattn:theta=-1:tau=0.9 xattention flexprefill minference
    minference:v=500:s=1000 fg-attn:mode=pooled hyperattention qk-sparse hash-sparse longnet longformer
    bigbird:preset=sample sparse-transformer oracle oracle:kind=block:unit=64x64"
sweeps="streaming:sink=4:window=192,432,864,1344,2048 sale:tau=0.5,0.1,0.05,0.02,0.004
    $(for a in 0.3 0.5 0.7 0.8 0.9 0.95; do echo "sampleattention:alpha_c=$a:alpha_s=$a"; done)
    spargeattn:theta=-1:tau=0.9,0.95,0.98,0.99 spargeattn:theta=-1:sink=1:tau=0.9,0.95,0.98,0.99
    xattention:tau=0.3,0.6,0.8,0.9,0.95,0.97 flexprefill:gamma=0.5,0.8,0.9,0.95,0.98,0.99:min_budget=128
    minference:ratio=0.01,0.02,0.03,0.05,0.1 fg-attn:mode=pooled:c1=1,0.5,0.2,0.1,0.05,0.02"
bounds="longformer:window=192,432,864,1344,2048 oracle:alpha=0.95,0.98,0.99,0.995,0.999
    oracle:kind=block:unit=64x64:alpha=0.5,0.7,0.8,0.9,0.95"
asked="streaming:sink=4:window=1024 sale sampleattention spargeattn spargeattn:sink=1 spargeattn:theta=-1:tau=0.9
    xattention flexprefill minference:v=500:s=1000 fg-attn:mode=pooled oracle"
items="sampleattention:4 spargeattn:7 sale:3 sampleattention:5 spargeattn:6 sampleattention:3"

# The words with -m before each.
each() {
    for m in "$@"; do echo "-m $m"; done
}
likelihood=density_elem,ppl,kl_mean,top1_agree

# shellcheck disable=SC2086,SC2046 # words on purpose, to the end of the file
{
    capture() {
        [ -e "$out/$1.h5" ] || "$LACUNA" capture --model "$model" --prompt "$2" --tokens $n $layers $in -o "$out/$1.h5"
    }
    inside() { d=$1 && shift && "$LACUNA" eval --model "$model" "$@" $in -o "$out/$d"; }
    table() { f=$1 && shift && "$LACUNA" analyze "$@" >"$out/$f.txt" && cat "$out/$f.txt"; }

    text() {
        capture prose "$prose"
        for tokens in $lengths; do
            inside text-$tokens --task "$prose" -n $tokens --windows 1 $(each $defaults)
            inside sweep-$tokens --task "$prose" -n $tokens --windows 1 $(each $sweeps $bounds)
            table text-$tokens "$out/text-$tokens" --table eval --columns $likelihood
            for d in 0.1 0.2 0.3; do
                for by in kl_mean ppl; do
                    table $by-$d-$tokens "$out/sweep-$tokens" --table ranking --by $by --at density_elem=$d
                done
            done
        done
        "$LACUNA" replay "$out/prose.h5" $(each $defaults) $beside -o "$out/beside"
        "$LACUNA" replay "$out/prose.h5" $(each $sweeps $bounds) $beside -o "$out/sweep"
        table beside "$out/beside" --columns density_elem,cra_mean,cra_p1,err_l1_rel
        table inside "$out/beside" "$out/text-$n" --table inside
        table inside-sweep "$out/sweep" "$out/sweep-$n" --table inside
    }
    needles() {
        inside needles --task needle -n $needles --trials $trials $(each $asked)
        table needles "$out/needles" --group tokens,method,params --columns needle_acc,answer_nll,density_elem
    }
    papers() {
        "$LACUNA" reproduce $items --model "$model" --chat none --lengths $papers $backend -o "$out/papers"
    }
    plan() {
        capture prose "$prose"
        capture code "$code"
        METHODS=$(each dense:map=0 $sweeps) sh "$here/plan.sh" "$out/plan" "$out/prose.h5" "$out/code.h5" $beside
        for t in "$prose" "$code"; do
            inside planned --task "$t" -n $n --windows 1 -m "plan:file=$out/plan/plan.json" $(each $sweeps)
        done
        table planned "$out/planned" --table eval --group task,method,params --columns $likelihood
    }
    decode() {
        gpl=/usr/share/common-licenses/GPL-3 keys=128,256,512
        head -n 298 $gpl >"$out/prompt.txt"
        tail -n +299 $gpl >"$out/rest.txt"
        [ -e "$out/decode.h5" ] ||
            "$LACUNA" capture --model "$model" --prompt "$out/prompt.txt" --generate 256 --continuation "$out/rest.txt" \
                --col-sums --no-nll --layers 2,8,14,20,26 $in -o "$out/decode.h5"
        "$LACUNA" replay "$out/decode.h5" --phase decode -m dense -m twilight:dense_layers=0 \
            $(each quest:dense_layers=0:budget=$keys ds:dense_layers=0:budget=$keys oracle:kind=topk,evict:k=$keys) \
            $(each evict:by=tova,h2o,streaming,knorm,keydiff,random:when=step,prompt:capacity=$keys) \
            $(each evict:unit=group,head:capacity=$keys) -o "$out/decode"
        table decode "$out/decode" --table decode
    }
    calls() {
        capture prose "$prose"
        "$LACUNA" replay "$out/prose.h5" $(each $defaults) --backend cuda --samples 5 --layers 2,8,14,20,26 -o "$out/calls"
        table calls "$out/calls" --table time
    }

    [ $# -gt 0 ] || set -- $parts
    for part in "$@"; do
        case " $parts " in
        *" $part "*) $part ;;
        *) echo "results.sh: no part '$part'; there are: $parts" >&2 && exit 2 ;;
        esac
    done
}
