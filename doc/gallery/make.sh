#!/bin/sh
# make.sh LACUNA WORK [gpu]: draws every picture of this folder again, from the two shipped models.
# WORK is an empty folder for traces and records; figures.md there has each figure with its command and
# caption, tables.md every table. With `gpu`, on a machine that has one, only the records of gpu/ are made again,
# from which the tables of GPU times are printed anywhere.
set -eu
lacuna=$1 work=$2 part=${3-}
here=$(cd "$(dirname "$0")" && pwd) root=$(cd "$(dirname "$0")/../.." && pwd)
case $lacuna in
/*) ;;
*) lacuna=$(pwd)/$lacuna ;;
esac
mkdir -p "$work"
cd "$work"
page=figures.md

run()
{
    "$lacuna" "$@" -q
}

data()
{
    cp "$root/datasets/prompts/core.txt" prompt.c # stays as it is while the sources change
    head -c 6000 prompt.c >text.c
    run capture --model "$root/datasets/models/code-lm" --prompt prompt.c --tokens 2048 -o code.h5
    run capture --model "$root/datasets/models/video-dit" --size 4x64x96 --steps 4 -o video.h5
    run replay code.h5 -m dense:c=0.1+0.5+1+10 -m streaming:sink=4:window=128,256,512 \
        -m spargeattn:theta=-1:tau=0.7,0.9 -m sampleattention:alpha_c=0.8,0.95:alpha_s=0.8,0.95 \
        -m sale:tau=0.004,0.016,0.064 -m fg-attn:tau=0.1,0.5,1,2 -m xattention \
        -m oracle:alpha=0.8,0.9,0.95 --precision f32 -o code
    run replay code.h5 -m sampleattention -m sale:tau=0.064 -m streaming:window=256 \
        -m spargeattn:theta=-1:tau=0.9 --layers 2 --dump-masks masks.h5 --precision f32 -o masks
    run replay video.h5 -m dense -m fg-attn:refresh=4:compare=1:tau=0.5,1,2 \
        -m spargeattn:theta=-1:tau=0.5,0.8 -m oracle:alpha=0.9 -o video
    run replay code.h5 -m streaming:window=64,128,256 -m sale:tau=0.016,0.064 \
        -m oracle:alpha=0.8,0.9 --precision f32 -o same
    run eval --model "$root/datasets/models/code-lm" -m dense -m streaming:window=64,128,256 \
        -m sale:tau=0.016,0.064 -m oracle:alpha=0.8,0.9 \
        --task needle --tokens 512,1K --depth 0,0.5,1 --trials 1 -o eval
    run eval --model "$root/datasets/models/code-lm" -m dense -m streaming:window=64,128,256 \
        -m sale:tau=0.016,0.064 -m oracle:alpha=0.8,0.9 --task text.c --tokens 1K -o text
    run eval --model "$root/datasets/models/video-dit" --size 4x64x96 --steps 4 -m dense \
        -m fg-attn:refresh=2:tau=1 -m spargeattn:theta=-1:tau=0.8 -o clip
    run replay code.h5 -m spargeattn:tau=0.9 -m spargeattn:judge=0:tau=0.9 --layers 2 \
        --precision f32 -o judge
    run choose code --limit 'err_l1_rel<=0.01' --cost density_elem -o plan.json
    run replay code.h5 -m plan:file=plan.json --precision f32 -o planned
    run capture --model "$root/datasets/models/code-lm" --prompt prompt.c --tokens 4096 --rows 8 \
        --layers 2 -o sample.h5
    run replay sample.h5 -m streaming:window=256 -m sale --precision f32 -o sample
}

# Times and counters of calls; the records of their heads say nothing about them.
gpu_records()
{
    sh "$root/datasets/prompts/make_prompt.sh" core sim capture cuda >long.c
    run capture --model "$root/datasets/models/code-lm" --prompt long.c --tokens 8192 --layers 2 --maps 0 \
        --dtype bf16 --device cuda -o long.h5
    run replay long.h5 --backend cuda -m dense -m streaming:sink=4:window=512 -m spargeattn:theta=-1:tau=0.9 \
        -m sampleattention -m sale -m xattention -m flexprefill -m minference -m fg-attn:refresh=1:tau=0.5,1,2 \
        -m fg-attn:mode=pooled -m oracle:alpha=0.9 -m longformer -o times
    run replay long.h5 --backend cuda --counters -m dense -m streaming:sink=4:window=512 -m sale -m xattention \
        -m spargeattn:theta=-1:tau=0.9 -o counters
    run eval --model "$root/datasets/models/code-lm" --device cuda --samples 5 --task long.c -n 8K --windows 1 \
        -m streaming:sink=4:window=512 -m spargeattn:theta=-1:tau=0.9 -m sampleattention -m sale -m xattention \
        -m flexprefill -o prefill
    for name in times counters prefill; do
        mkdir -p "$here/gpu/$name"
        grep -E '"scope":"(call|model)"' "$name/records.jsonl" >"$here/gpu/$name/records.jsonl"
    done
}

# figure NAME "WHAT IT SHOWS" FIGURE ARGUMENT...
figure()
{
    name=$1 what=$2
    shift 2
    "$lacuna" plot "$@" -q -o "$name.png"
    cp "$name.png" "$here/$name.png"
    {
        printf '## %s\n\n%s\n\n    lacuna plot %s -o %s.png\n\n![%s](%s.png)\n\n' \
            "$name" "$what" "$(echo "$*" | sed "s|$root/||")" "$name" "$name" "$name"
        sed -n '1s/^/Caption: /p' "$name.txt"
        echo
    } >>"$page"
}

table()
{
    name=$1
    shift
    if "$lacuna" analyze "$@" --table "$name" >"$name.text" 2>/dev/null; then
        {
            printf '## table %s\n\n    lacuna analyze %s --table %s\n\n```\n' "$name" \
                "$(echo "$*" | sed "s/method=[^ ]*|[^ ]*/'&'/")" "$name"
            cat "$name.text"
            printf '```\n\n'
        } >>tables.md
    fi
}

if [ "$part" = gpu ]; then
    gpu_records
    exit
fi
[ -d text ] || data
for name in times counters prefill; do
    rm -rf "$name"
    cp -r "$here/gpu/$name" .
done
printf '# Figures\n\n' >"$page"
figure heatmap 'The attention map of a head, computed in the cells of the picture.' \
    heatmap code.h5 --layers 2 --heads 5
figure heads 'All heads: rows are layers, columns are heads.' heatmap code.h5 --width 6.6in
figure zoom 'A part of a map.' heatmap code.h5 --layers 4 --heads 6 --rows 1000-1400 --keys 0-1400
figure tokens 'A short part with the texts of its tokens.' \
    heatmap code.h5 --layers 3 --heads 2 --rows 100-140 --keys 80-140 --tokens "$root/datasets/models/code-lm"
figure overlay 'Masks laid over the map: what they drop is pale.' \
    overlay code.h5 --masks masks.h5 --layers 2 --heads 5 --width 6.6in
figure mask 'The masks of several methods, with the share of pairs that each keeps.' \
    mask masks.h5
figure steps 'A head of a video model over its denoising steps, lines between frames.' \
    heatmap video.h5 --layers 3 --heads 0 --steps all --width 7.5in
figure pareto 'What is kept against what it costs.' pareto code
figure bars 'A metric by layer.' bars code --method sale,sampleattention
figure means 'The means of one setting with their numbers, and the mean of all.' means code --method sale --params tau=0.016 \
    --metrics density_elem
figure curves 'A metric against a parameter, which is something else in each method.' \
    curves code --x tau --metrics cra_mean
figure sweep 'A metric over two parameters.' sweep code --method sampleattention --x alpha_c --y alpha_s
figure cdf 'The distribution over heads; more than eight settings are one panel per method.' cdf code
figure layerhead 'A metric by layer and head.' layerhead code --params 'defaults'
figure granularity 'How sparse the map is at each size of block.' granularity code
figure phases 'Wall time of the CPU reference by phase.' phases code --method sale,sampleattention,xattention
figure stability 'Masks that are reused over steps.' stability video
figure needle 'A retrieval task with a method inside the model.' needle eval
figure growth 'Growth of the error inside the model.' growth text
figure inside 'Does a replay predict the model with the method inside?' \
    inside same text --metrics err_l2_rel,kl_mean
figure pareto-paper 'For a column of a paper, 3.3 inches.' \
    pareto code --style paper --metrics err_l1_rel --method sale,streaming,sampleattention,spargeattn,oracle
figure mask-paper 'For the width of a page, 6.9 inches.' mask masks.h5 --style paper --width 6.9in

# shellcheck disable=SC2016 # backquotes of Markdown
printf '# Tables\n\nEvery table of `lacuna list tables`. Those of times on a GPU are made of the records in doc/gallery/gpu, from an H200.\n\n' \
    >tables.md
for name in $("$lacuna" list tables | cut -d' ' -f1); do
    case $name in
    eval-tasks) table "$name" eval ;;
    eval-clips | eval-steps) table "$name" clip ;;
    eval-clip-time) ;; # times of clips: no records of a GPU are kept here
    eval-time) table "$name" prefill ;;
    time) table "$name" times ;;
    counters) table "$name" counters ;;
    eval*) table "$name" text ;;
    by-head) table "$name" code --top 24 ;;
    by-step | by-sample | stability | masks | threshold) table "$name" video ;;
    inside) table "$name" same text ;;
    judge | sample) table "$name" "$name" ;;
    plan) table "$name" planned code ;;
    ranking) table "$name" code --at density_elem=0.3 \
        --where 'method=streaming|spargeattn|sampleattention|sale|oracle' ;;
    *) table "$name" code ;;
    esac
done
du -sh "$here" >&2
