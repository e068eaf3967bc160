# Killed again and again, with whatever runs below it: the pages are those of a run left alone.
"$LACUNA" capture --model "$ROOT/datasets/models/code-lm" --prompt "$ROOT/LICENSE" --tokens 384 -q -o t.h5
. "$ROOT/tests/cli/running.sh"
tables="sale:3 spargeattn:6 spargeattn:11 spargeattn:7 sampleattention:3"
run() { # DIR: in a process group of its own
    # shellcheck disable=SC2086 # a list of tables
    exec setsid "$LACUNA" reproduce $tables --quick --trace lm=t.h5 --parallel 3 -q -o "$1"
}
(run whole) && echo "left alone: done"
n=0 delay=1
while [ ! -e out/index.html ] && [ $n -lt 60 ]; do
    run out 2>/dev/null &
    pid=$!
    sleep 0.$delay
    delay=$((delay % 8 + 1)) n=$((n + 1))
    kill -9 -- -$pid 2>/dev/null || kill -9 $pid 2>/dev/null # the group may not be there yet
    wait $pid 2>/dev/null
done
[ $n -gt 5 ] && echo "killed more than five times"
(run out) && echo "then done"
for f in whole/pages/*; do
    cmp "$f" "out/pages/${f##*/}"
done
find out/jobs -name '*.part' -o -name '*.lock'

# Told to end, it takes the jobs that run side by side with it.
run told 2>/dev/null &
pid=$!
while running $pid && [ -z "$(find told/jobs -name '*.part' 2>/dev/null)" ]; do sleep 0.01; done
kill -TERM $pid
wait $pid
echo "told to end: exit $?"
kill -0 -- -$pid 2>/dev/null && echo "children are left"
(run told) && cmp whole/pages/sale-3.csv told/pages/sale-3.csv && echo "and continues"

find out/pages out/plan.json -type f | LC_ALL=C sort | xargs cksum >first
(ulimit -t 1 && run out) && echo "a second call takes less than a second"
find out/pages out/plan.json -type f | LC_ALL=C sort | xargs cksum | cmp - first && echo "and changes nothing"
