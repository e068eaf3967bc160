#!/usr/bin/env bash
# check-gpu.sh BIN - everything that is checked on a machine with a GPU, with the programs in BIN
# (lacuna, checkcu): kernels, metrics, selections and the model runner against the CPU reference; every
# method on traces of both models of datasets/models; two captures of one run; the kernels under
# compute-sanitizer, where it is installed. From the project's root. Exit code 1 when a check failed or
# none ran, 4 without a GPU.
# shellcheck disable=SC2317 # functions are called by part
set -uo pipefail
bin=$1
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
export OPENBLAS_NUM_THREADS=1 # the jobs of a capture are its threads
failed=0

part() { # NAME COMMAND...: run it, say how long it took, remember a failure
    local name=$1 begin=$SECONDS rc=0
    shift
    echo "== $name"
    "$@" || rc=$?
    [ "$rc" = 4 ] && exit 4
    [ "$rc" = 0 ] || { echo "FAIL $name: exit code $rc"; failed=1; }
    echo "   $name: $((SECONDS - begin)) s"
}

prompt() { cat core/*.c sim/*.c capture/*.c cuda/*.c | head -c "$1"; }

traces() {
    prompt 60000 >"$work/short.txt"
    "$bin/lacuna" capture -q -m datasets/models/code-lm --prompt "$work/short.txt" --tokens 3072 \
        --dtype bf16 -o "$work/text.h5" || return
    "$bin/lacuna" capture -q -m datasets/models/video-dit --size 8x128x192 --steps 4 \
        --capture-steps 1,2 --dtype bf16 -o "$work/video.h5" || return
    "$bin/checkcu" --traces "$work/text.h5" "$work/video.h5"
}

captures() { # of a part of the heads: all layers run, a file of a few MB is enough
    prompt 400000 >"$work/long.txt"
    for device in cpu cuda; do
        "$bin/lacuna" capture -q -m datasets/models/code-lm --prompt "$work/long.txt" --tokens 32768 \
            --maps 0 --dtype bf16 --layers 1,5 --heads 0,3,7 --device "$device" \
            -o "$work/$device.h5" || return
    done
    "$bin/checkcu" --same "$work/cpu.h5" "$work/cuda.h5"
}

# Errors and hazards are failures, of all kernels but cuBLAS's. The filters run side by side: the tool, not the GPU, is the limit.
sanitizer() { # TOOL FILTER...
    local tool=$1 rc=0 filter options=()
    shift
    # a barrier may order accesses of threads that never meet at it, through a third one
    [ "$tool" = racecheck ] && options=(--racecheck-indirect-barrier-dependency)
    for filter in "$@"; do
        compute-sanitizer --tool "$tool" "${options[@]}" --error-exitcode 9 --show-backtrace no \
            --print-limit 5 --kernel-name-exclude kns=nvjet "$bin/checkcu" --small "$filter" >"$work/$tool.$filter" 2>&1 || touch "$work/$tool.failed" &
    done
    wait
    for filter in "$@"; do
        sed -n "s/^=\{1,\} \(.*SUMMARY.*\)/   $filter: \1/p; /FAIL/p; /Error/p" "$work/$tool.$filter" |
            head -5
        tail -n 3 "$work/$tool.$filter" | grep -q ' passed, ' || rc=1
    done
    [ ! -e "$work/$tool.failed" ] && [ "$rc" = 0 ]
}

part kernels "$bin/checkcu"
part traces traces
part captures captures
if command -v compute-sanitizer >/dev/null; then
    filters=(bf16-hd64 bf16-hd128 f16-hd64-dense f16-hd128-dense portable-hd64 portable-hd128 portable-f16
        decoder metrics cublas spargeattn sampleattention xattention flexprefill minference)
    part memcheck sanitizer memcheck "${filters[@]}"
    part racecheck sanitizer racecheck "${filters[@]}"
else
    echo "== compute-sanitizer is not installed: memcheck and racecheck did not run"
fi
[ "$failed" = 0 ] && echo "all parts passed in $SECONDS s" || echo "FAILED"
exit $failed
