#!/bin/sh
# tsan.sh - commands that work in several threads, in a build with ThreadSanitizer (make check-tsan).
# Prints a line per command and "N passed, N failed".
set -u
: "${LACUNA:?the program to test}"
case $LACUNA in
/*) ;;
*) LACUNA=$(pwd)/$LACUNA ;;
esac
root=$(pwd)
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
export LACUNA_DATA="$root/datasets"
passed=0 failed=0

# judge STATUS WANTED COMMAND...
judge()
{
    status=$1 wanted=$2
    shift 2
    if [ "$status" -eq "$wanted" ] && ! grep -q 'WARNING: ThreadSanitizer' "$dir/log"; then
        echo "  ok    $*"
        passed=$((passed + 1))
    else
        echo "  FAIL  $* (exit $status, expected $wanted)"
        sed 's/^/        /' "$dir/log" | head -n 60
        failed=$((failed + 1))
    fi
}

run()
{
    "$LACUNA" "$@" -j 4 >"$dir/log" 2>&1
    judge $? 0 "$@"
}

cd "$dir" || exit 1
(cd "$root" && sh datasets/prompts/make_prompt.sh core) >prompt.c
code=$root/datasets/models/code-lm video=$root/datasets/models/video-dit
run capture -q --model "$code" --prompt prompt.c --tokens 96 -o t.h5
run trace verify t.h5
run trace pack -q t.h5 -o p.h5
run trace verify p.h5
run trace export -q p.h5 -o e.safetensors
run replay -q p.h5 -m dense -m streaming:window=16,32 -m spargeattn -m sale -m sampleattention \
    -m minference --layers 0,1 --dump-masks m.h5 --dump-outputs o.h5 -o r
run replay -q p.h5 -m dense -m xattention -m flexprefill -m longformer --layers 2 --precision f32 -o r
run calibrate -q sampleattention t.h5 --layers 0 -o c.json
run capture -q --model "$video" --size 2x32x48 --steps 2 -o v.h5
run replay -q v.h5 -m dense -m fg-attn:refresh=2 -m spargeattn -m svg1 --layers 0 --permute hilbert \
    -o rv

# An interrupt reaches one thread, and all of them stop.
"$LACUNA" replay -q t.h5 -m dense -m streaming:sink=1..40/lin40:window=1..90/lin80 -j 4 -o ri \
    >"$dir/log" 2>&1 &
sleep 1
kill -INT $!
wait $!
judge $? 130 "replay, interrupted"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
