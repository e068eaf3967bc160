#!/bin/sh
# method.sh DIR TRACE - a method of 30 lines of Python stands beside the built-in ones in tables and in the
# Pareto figure, and its dumped masks give the same records through `mask`. LACUNA, ROOT and PYTHON are
# those of run.sh. Prints what is wrong; exit status 1 then.
set -u
dir=$1 trace=$2 bad=0
fail()
{
    echo "method: $*"
    bad=1
}
example=$ROOT/capture/torch/examples/topblocks.py
[ "$(grep -vc '^ *$' "$example")" -le 30 ] || fail "the example has more than 30 lines"
PYTHONPATH=$ROOT/capture/torch "$LACUNA" replay "$trace" -q -m "exec:cmd=$PYTHON $example:params=2,4,6" \
    -m streaming:window=64,256 -m xattention:tau=0.5 --dump-masks "$dir/own.h5" -o "$dir/own" || fail "replay"
rows=$("$LACUNA" analyze "$dir/own" -f csv | cut -d, -f1 | tr -d '\r' | sort | uniq -c | tr -s ' \n' ' ')
[ "$rows" = " 3 exec 1 method 2 streaming 1 xattention " ] || fail "rows of the table: '$rows'"
# The figure's data are there without gnuplot, too.
"$LACUNA" plot pareto "$dir/own" -q -o "$dir/pareto.svg" --force >/dev/null 2>&1
for method in exec streaming xattention; do
    grep -q "$method" "$dir/pareto.gp" 2>/dev/null || fail "no $method in the Pareto figure"
done
number=$("$LACUNA" mask list "$dir/own.h5" | sed -n 's/^ *\([0-9]*\) .*exec.*params=4.*/\1/p')
"$LACUNA" replay "$trace" -q -m "mask:file=$dir/own.h5:pick=$number" -o "$dir/back" || fail "replay of the masks"
numbers()
{
    sed 's/.*"layer":\([0-9]*\),"head":\([0-9]*\),.*"status":"ok",/\1 \2 /; s/"pairs_dropped":[^,]*,//; s/"host_exec_ns":[^,]*,//; s/"notes":"[^"]*",//; s/"host.*//' | sort
}
grep '"method":"exec","params":"[^"]*params=4"' "$dir/own/records.jsonl" | numbers >"$dir/want"
numbers <"$dir/back/records.jsonl" >"$dir/have"
[ -s "$dir/want" ] || fail "no records"
cmp "$dir/want" "$dir/have" || fail "the masks have other records"
exit $bad
