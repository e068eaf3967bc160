# Killed again and again: the pages are those of a run left alone.
"$LACUNA" capture --model "$ROOT/datasets/models/code-lm" --prompt "$ROOT/LICENSE" --tokens 384 -q -o t.h5
. "$ROOT/tests/cli/running.sh"
tables="sale:3 spargeattn:6 spargeattn:11 spargeattn:7 sampleattention:3"
run() { # DIR
    # shellcheck disable=SC2086 # a list of tables
    exec "$LACUNA" reproduce $tables --quick --trace lm=t.h5 --parallel 3 -q -o "$1"
}
files() { find "$1/jobs" 2>/dev/null | wc -l; }
(run whole) && echo "left alone: done"
n=0
while [ ! -e out/index.html ] && [ $n -lt 30 ]; do
    before=$(files out)
    run out 2>/dev/null &
    pid=$!
    while running $pid && [ "$(files out)" = "$before" ]; do sleep 0.01; done
    kill -9 $pid 2>/dev/null && n=$((n + 1))
    wait $pid 2>/dev/null
done
[ $n -gt 3 ] && echo "killed more than three times"
(run out) && echo "then done"
for f in whole/pages/*; do
    cmp "$f" "out/pages/${f##*/}"
done
find out/jobs -name '*.part'
find out/pages -type f | LC_ALL=C sort | xargs cksum >first
(run out)
find out/pages -type f | LC_ALL=C sort | xargs cksum | cmp - first && echo "a second call changes nothing"

# A capture of minutes ends with the command, however that ends; so does make.
long() { # signal, and whom it is sent to: the command, or make below it
    "$LACUNA" reproduce fg-attn:2 --parallel 1 -q -o "$1" 2>/dev/null &
    pid=$!
    while running $pid && ! [ -s "$1/jobs/Makefile" ]; do sleep 0.01; done
    while running $pid && ! ls "$1"/jobs/*.part/log.txt >/dev/null 2>&1; do sleep 0.01; done
    whom=$pid
    [ "$2" = make ] && read -r whom rest <"/proc/$pid/task/$pid/children" # make, and what watches
    kill -"$1" "$whom"
    wait $pid 2>/dev/null
    echo "$1 to $2: exit $?"
    flock "$1/jobs/lock" true # all processes have left it
    find "$1/jobs" -name trace.h5
    rm -r "$1"
}
long TERM lacuna
long KILL lacuna
long KILL make

# A replay that is within a head of minutes ends, too: it leaves no record.
n=65536
header="{'descr': '<f2', 'fortran_order': False, 'shape': (1, $n, 16), }"
{
    printf '\223NUMPY\001\000v\000%-117s\n' "$header"
    head -c $((n * 32)) /dev/zero
} >zero.npy
"$LACUNA" import --q zero.npy --k zero.npy --v zero.npy --causal -q -o zero.h5 >/dev/null
"$LACUNA" reproduce sampleattention:4 --trace lm=zero.h5 --parallel 1 -q -o head 2>/dev/null &
pid=$!
ticks() { # of the processor that the first job below make has used
    read -r make rest <"/proc/$pid/task/$pid/children"
    read -r job rest <"/proc/$make/task/$make/children"
    set -- $(sed 's/.*) //' "/proc/$job/stat") && echo "${12}"
}
while running $pid && ! [ "$(ticks 2>/dev/null || echo 0)" -ge 50 ] 2>/dev/null; do sleep 0.05; done
kill -KILL $pid
wait $pid 2>/dev/null
flock head/jobs/lock true
cat head/jobs/*.part/records.jsonl 2>/dev/null | wc -l
