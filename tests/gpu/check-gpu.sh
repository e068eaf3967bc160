#!/usr/bin/env bash
# check-gpu.sh BIN [PART...] - everything that is checked on a machine with a GPU, with the programs in
# BIN (lacuna, checkcu), or the named parts of it (below): kernels, metrics, selections and the model
# runners against the CPU reference; every method on traces of both models of datasets/models; captures
# and evals of both models, on both sides, and calibrations; the kernels under compute-sanitizer, where it
# is installed. From the project's root. Exit code 1 when a check failed or none ran, 4 without a GPU.
# shellcheck disable=SC2317 # functions are called by part
set -uo pipefail
bin=$1
shift
[ $# = 0 ] && set -- kernels traces captures evals clips calibrations memcheck racecheck
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
export OPENBLAS_NUM_THREADS=1 # the jobs of a capture are its threads
failed=0

part() { # NAME COMMAND...: run it, say how long it took, remember a failure
    local name=$1 begin=$SECONDS rc=0
    shift
    echo "== $name"
    ("$@") || rc=$? # in a shell of its own: it waits for its own jobs
    [ "$rc" = 4 ] && exit 4
    [ "$rc" = 0 ] || { echo "FAIL $name: exit code $rc"; failed=1; }
    echo "   $name: $((SECONDS - begin)) s"
}

prompt() { sh datasets/prompts/make_prompt.sh core sim capture cuda | head -c "$1"; }

traces() {
    prompt 60000 >"$work/short.txt"
    "$bin/lacuna" capture -q -m datasets/models/code-lm --prompt "$work/short.txt" --tokens 3072 \
        --dtype bf16 -o "$work/text.h5" || return
    "$bin/lacuna" capture -q -m datasets/models/video-dit --size 8x128x192 --steps 4 \
        --capture-steps 1,2 --dtype bf16 -o "$work/video.h5" || return
    "$bin/checkcu" --traces "$work/text.h5" "$work/video.h5" || return
    "$bin/checkcu" --calls "$work/text.h5" "$work/video.h5" || return
    calls "$work/text.h5"
}

count() { grep -c "$1" "$2"; }

# A replay call by call: its records, continued, beside a replay of heads by themselves.
calls() { # T.h5
    local methods=(-m dense -m streaming:sink=4:window=512 -m sampleattention -m sale -m xattention -m fg-attn:mode=pooled
        -m fg-attn:refresh=1:M=32 -m oracle -m hash-sparse -m qk-sparse -m longformer -m sparse-transformer -m longnet
        -m hyperattention:min_len=512:block=64:samples=64 -m spargeattn -m flexprefill -m minference:pattern=block
        -m oracle:kind=block:unit=64x64)
    local runs=$((${#methods[@]} / 2))
    local records=$work/calls/records.jsonl layers
    "$bin/lacuna" replay -q --backend cuda "$1" "${methods[@]}" --samples 5 -o "$work/calls" || return
    "$bin/lacuna" replay -q --backend cuda "$1" "${methods[@]}" --samples 0 --copies 1 -o "$work/heads" || return
    layers=$(($(count '"method":"dense"' "$records") - $(count '"method":"dense"' "$work/heads/records.jsonl")))
    echo "   $(count '"scope":"call"' "$records") calls, $(count . "$records") records"
    [ "$(grep '"scope":"call"' "$records" | grep '"status":"ok"' | grep '"time_total_ns":[0-9]' | grep -c '"speedup":[0-9]')" \
        = $((layers * runs)) ] || { echo "FAIL: calls without a total"; return 1; }
    "$bin/lacuna" compare "$work/heads" "$work/calls" --where scope=head --metrics 'density_elem,density_tile,pairs_*' --rtol 1e-5 || return
    "$bin/lacuna" compare "$work/heads" "$work/calls" --where scope=head --metrics 'cra_*' --atol 5e-6 || return
    "$bin/lacuna" replay --backend cuda "$1" "${methods[@]}" --samples 5 -o "$work/calls" || return
    [ "$(count . "$records")" = $((layers * runs + $(count . "$work/heads/records.jsonl"))) ] ||
        { echo "FAIL: a finished replay wrote records"; return 1; }
    "$bin/lacuna" analyze "$work/calls" --table time
}

captures() { # of a part of the heads: all layers run, a file of a few MB is enough
    prompt 400000 >"$work/long.txt"
    for device in cpu cuda; do
        "$bin/lacuna" capture -q -m datasets/models/code-lm --prompt "$work/long.txt" --tokens 16384 \
            --maps 0 --dtype bf16 --layers 1,5 --heads 0,3,7 --device "$device" \
            -o "$work/$device.h5" || return
    done
    "$bin/checkcu" --same "$work/cpu.h5" "$work/cuda.h5"
}

# A model with methods inside, on both sides: operands are bf16 on the GPU, so nll_mean within 1e-3
# relative; a full mask is exact attention there too; times in the records.
evals() {
    local device
    prompt 60000 >"$work/eval.txt"
    for device in cpu cuda; do
        "$bin/lacuna" eval -q --model datasets/models/code-lm --task "$work/eval.txt" --tokens 2048 --windows 1 \
            -m streaming:sink=4:window=256 -m streaming:window=4096 -m spargeattn -m sale -m sampleattention \
            -m minference:v=200:s=400 -m xattention -m fg-attn:mode=pooled -m oracle -m longformer \
            --dense-layers 1 --device "$device" -o "$work/eval-$device" || return
    done
    "$bin/lacuna" eval -q --model datasets/models/code-lm --task needle --tokens 2048 --depth 0.5 --trials 1 --seed 7 \
        -m spargeattn@density_elem=0.3 -m sale --samples 3 --device cuda -o "$work/eval-needle" || return
    for device in cpu cuda; do
        "$bin/lacuna" analyze "$work/eval-$device" --table eval --columns nll_mean,nll_delta --format csv \
            --group method,params >"$work/eval-$device.csv" || return
    done
    "$bin/lacuna" analyze "$work/eval-needle" --group method --columns needle_acc,ttft_speedup --format csv >"$work/needle.csv" || return
    paste -d, "$work/eval-cpu.csv" "$work/eval-cuda.csv" | tr -d '\r' | awk -F, '
        function off(a, b) { return a > b ? (a - b) / a : (b - a) / a }
        NR == 1 {for (i = 1; i <= NF; i++) if ($i == "nll_mean") at[++n] = i; else if ($i == "nll_delta") delta = i; next}
        {rows++; e = off($at[1], $at[2]); worst = e > worst ? e : worst}
        /window=4096/ {full = $delta < 0 ? -$delta : $delta}
        END {print "   " rows, "settings, nll_mean at most", worst, "apart (relative); a full mask", full, "nat from exact"
             exit !(rows == 11 && worst <= 1e-3 && full <= 1e-3)}' || return
    awk -F, '/^spargeattn|^sale/ {rows++; print "   " $1 ": needle", $5} END {exit rows != 2}' "$work/needle.csv" &&
        grep -q ttft_ns "$work/eval-needle/records.jsonl" && answers && clip_times
}

# Times of a clip: a method that attends exactly by its own schedule is as fast as exact attention, of the model's
# own launch (the record of dense) as of the launches in turns; every record has a time of the generation.
clip_times() {
    "$bin/lacuna" eval -q --model datasets/models/video-dit --size 8x256x384 --steps 2 --guidance 3 -m fg-attn \
        -m radial:dense_steps=2 --samples 5 --device cuda -o "$work/clip-times" || return
    "$bin/lacuna" analyze "$work/clip-times" --group method --format csv \
        --columns generation_ns,attn_speedup,time_attn_dense_ns | tr -d '\r' | awk -F, '
        function off(x) { return x > 1.15 || x < 1 / 1.15 }
        NR == 1 {for (i = 1; i <= NF; i++) at[$i] = i; next}
        {rows++; wrong += !($at["generation_ns"] > 0); dense[$1] = $at["time_attn_dense_ns"]; fast[$1] = $at["attn_speedup"]}
        END {for (m in dense) {r = dense[m] / dense["dense"]; print "   " m ": attention", fast[m], "x; dense in turns", r, "of dense alone"
                 wrong += off(r)}
             exit wrong || rows != 3 || off(fast["radial"])}'
}

# What follows a prompt, decoded on both sides: the same texts, and likelihoods of the right answers within
# what bf16 operands of the prefill do to them.
answers() {
    local device
    for device in cpu cuda; do
        "$bin/lacuna" eval -q --model datasets/models/code-lm --task needle --task chain:h=3 --task copy --tokens 2048 \
            --depth 0.5 --trials 1 --seed 7 -m sale -m sampleattention --device "$device" -o "$work/answers-$device" || return
        "$bin/lacuna" analyze "$work/answers-$device" --group task,method --columns answer_nll,copy_nll,copy_gain,chain_hops \
            --format csv | tr -d '\r' >"$work/answers-$device.csv" || return
        sed 's/.*"task":"\([^"]*\)".*"method":"\([^"]*\)".*"prediction":\(.*\),"key".*/\1 \2 \3/' \
            "$work/answers-$device/predictions.jsonl" | sort >"$work/answers-$device.txt"
    done
    cmp "$work/answers-cpu.txt" "$work/answers-cuda.txt" || return
    paste -d, "$work/answers-cpu.csv" "$work/answers-cuda.csv" | awk -F, '
        NR > 1 {for (i = 1; i <= NF / 2; i++) {a = $i; b = $(i + NF / 2)
                if (a !~ /^-?[0-9.e-]+$/) {wrong += a != b; continue}
                n++; d = a > b ? a - b : b - a; worst = d > worst ? d : worst; far += d > 0.02 + 0.02 * (a < 0 ? -a : a)}}
        END {print "   " n, "numbers of answers at most", worst, "apart"; exit wrong || far || n < 12}'
}

# Numbers of two calibrations' heads, line by line: how many are the same. Others may be a step of a bisection
# apart, 1 %; one in ten may be further.
same_parameters() { # METHOD, of $work/cpu.json and $work/cuda.json
    for device in cpu cuda; do
        sed -n '/^  "heads": \[/,/^  \]/p' "$work/$device.json" >"$work/$device.heads"
    done
    paste -d '|' "$work/cpu.heads" "$work/cuda.heads" | awk -F '|' -v method="$1" '
        {a = $1; b = $2; sub(/^[^:]*: */, "", a); sub(/^[^:]*: */, "", b)}
        $1 ~ /"(layer|head)"/ || a !~ /^-?[0-9]/ {wrong += $1 != $2; next}
        {n++; same += a == b; d = a - b; d = d < 0 ? -d : d; d /= a == 0 ? 1 : a < 0 ? -a : a
         worst = d > worst ? d : worst; far += d > 0.01}
        END {print "   " method ":", same, "of", n, "parameters the same, the others at most", 100 * worst " % apart"
             exit wrong || n == 0 || far > 0.1 * n}'
}

# The searches with settings judged on the GPU choose what they choose on the CPU, but where the error of
# a setting is within rounding (bf16) of the bound.
calibrations() {
    local method device
    prompt 60000 >"$work/calib.txt"
    "$bin/lacuna" capture -q -m datasets/models/code-lm --prompt "$work/calib.txt" --tokens 4096 --dtype bf16 \
        --layers 1 --maps 0 -o "$work/calib.h5" || return
    for method in sale spargeattn sampleattention minference; do
        for device in cpu cuda; do
            "$bin/lacuna" calibrate -q --backend "$device" "$method" "$work/calib.h5" --force \
                -o "$work/$device.json" || return
        done
        grep -q '"backend": "cuda"' "$work/cuda.json" || { echo "FAIL: $method was searched on the CPU"; return 1; }
        same_parameters "$method" || return
    done
}

# A video model on both sides, captured and with methods inside: clips differ from the exact one by the
# methods, not by the roundings, which are 60 dB below.
clips() {
    local device
    for device in cpu cuda; do
        "$bin/lacuna" capture -q -m datasets/models/video-dit --size 8x128x192 --capture-steps 0-3 \
            --guidance 3 --dtype f32 --device "$device" -o "$work/clip-$device.h5" || return
        "$bin/lacuna" eval -q --model datasets/models/video-dit --size 4x128x192 --steps 3 \
            -m radial:dense_steps=1:dense_layers=0 -m fg-attn --device "$device" -o "$work/clips-$device" || return
        "$bin/lacuna" analyze "$work/clips-$device" --group method --columns psnr,ssim,density_elem --format csv \
            >"$work/clips-$device.csv" || return
    done
    "$bin/checkcu" --same "$work/clip-cpu.h5" "$work/clip-cuda.h5" || return
    paste -d, "$work/clips-cpu.csv" "$work/clips-cuda.csv" | tr -d '\r' | awk -F, '
        NR == 1 {for (i = 1; i <= NF; i++) at[$i, ++n[$i]] = i; next}
        function apart(name, d) {d = $at[name, 1] - $at[name, 2]; return d < 0 ? -d : d}
        !/^dense/ {rows++; psnr = apart("psnr") > psnr ? apart("psnr") : psnr
            kept = apart("density_elem") > kept ? apart("density_elem") : kept; low = low || $at["psnr", 2] < 30}
        END {print "   clips of", rows, "settings: PSNR at most", psnr + 0, "dB apart, density", kept + 0
             exit !(rows == 2 && psnr <= 1.5 && kept <= 2e-3 && !low)}'
}

# checkcu in parts side by side: the reference and the sanitizer are the limit, not the GPU. Twice as many parts as run at a
# time, because some take several times as long as others.
parts() { # LOG COMMAND...: COMMAND --part I/N, output in $work/LOG.I; the number of failed parts
    local log=$1 i bad=0 n=$((2 * jobs)) running=0
    shift
    for ((i = 0; i < n; i++)); do
        [ "$running" -lt "$jobs" ] || { wait -n || bad=$((bad + 1)); running=$((running - 1)); }
        "$@" --part "$i/$n" >"$work/$log.$i" 2>&1 &
        running=$((running + 1))
    done
    for (( ; running > 0; running--)); do wait -n || bad=$((bad + 1)); done
    for ((i = 0; i < n; i++)); do
        tail -n 3 "$work/$log.$i" | grep -q ' passed, ' && continue
        echo "   part $i/$n did not end; its last lines:"
        tail -n 8 "$work/$log.$i" | cut -c 1-160 | sed 's/^/     /'
    done
    return "$bad"
}

kernels() {
    local rc=0
    "$bin/checkcu" cublas || return # without a GPU nothing else starts
    parts kernels "$bin/checkcu" || rc=1
    cat "$work"/kernels.* | grep -E '^ *(ok|FAIL|the GPU)' | sort -k 2
    cat "$work"/kernels.* | awk '/ passed, / {p += $1; f += $3} END {print p + 0, "passed,", f + 0, "failed"}'
    return "$rc"
}

# Errors and hazards are failures, but for those in cuBLAS's own kernels (nvjet). The sanitizer's memory grows with the
# launches of a process, under racecheck to tens of GB in one with many products, which the kernel then kills.
sanitizer() { # TOOL SIZE
    local tool=$1 rc=0 found
    parts "$tool" compute-sanitizer --tool "$tool" --show-backtrace no --print-limit 1000 \
        "$bin/checkcu" "$2" || rc=1
    found=$(cat "$work/$tool".* | grep -E '^=+ +(Error|Warning|Invalid|Program hit|Internal)' | grep -vc nvjet)
    cat "$work/$tool".* | grep FAIL | head
    cat "$work/$tool".* | grep -E '^=+ +(Error|Warning|Invalid|Program hit|Internal)' | grep -v nvjet |
        sed 's/+0x.*//; s/(.*//' | sort | uniq -c | sort -rn | head -5
    cat "$work/$tool".* | awk -v t="$tool" -v n="$found" '/ passed, / {p += $1}
        END {print "   " t ": " p + 0, "checks,", n, "errors"}'
    [ "$rc" = 0 ] && [ "$found" = 0 ]
}

memcheck() { sanitizer memcheck --small; }
racecheck() { sanitizer racecheck --brief; }

# One part after the other: racecheck keeps the GPU busy, and beside it the short launches of `kernels`, which wait for
# their turn, take three times as long.
jobs=$(nproc)
[ "$jobs" -gt 16 ] && jobs=16
ran=
for name in "$@"; do
    if [[ ! $name =~ ^(kernels|traces|captures|evals|clips|calibrations|memcheck|racecheck)$ ]]; then
        echo "FAIL: no part is called $name; there are kernels, traces, captures, evals, clips, calibrations, memcheck and racecheck"
        exit 1
    fi
done
for name in "$@"; do
    if [[ $name = *check ]] && ! command -v compute-sanitizer >/dev/null; then
        echo "== compute-sanitizer is not installed: $name did not run"
    else
        part "$name" "$name"
        ran+=" $name"
    fi
done
[ -n "$ran" ] || failed=1
[ "$failed" = 0 ] && echo "passed in $SECONDS s:$ran" || echo "FAILED"
exit $failed
