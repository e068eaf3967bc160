# SIGTERM ends what goes over many records wherever it is, and leaves nothing of its output.
. "$ROOT/tests/cli/running.sh"
mkdir a b
LC_ALL=C awk 'BEGIN {
    for (i = 0; i < 30000; i++)
        printf "{\"trace\":\"xxh3:a\",\"model\":\"toy\",\"run\":0,\"step\":0,\"branch\":\"main\",\"timestep\":null,\"layer\":%d,\"head\":%d,\"kv_head\":0,\"method\":\"dense\",\"params\":\"\",\"seed\":0,\"backend\":\"cpu\",\"precision\":\"f64\",\"permute\":\"none\",\"n_q\":64,\"n_k\":64,\"d\":8,\"causal\":true,\"status\":\"ok\",\"density_elem\":%.3f,\"cra_min\":1}\n", i / 300, i % 300, i / 30000
}' >a/records.jsonl
sed 's/"cra_min":1/"cra_min":0/' a/records.jsonl >b/records.jsonl
# ends TICKS WORDS: the exit of a command that gets the signal after so many ticks of the processor. One
# that ends before it does is started again.
ends()
{
    at=$1 code=0 tries=0
    shift
    while [ $code != 130 ] && [ $tries -lt 20 ]; do
        rm -rf page t.csv plan.json
        "$LACUNA" "$@" -q >out 2>err &
        pid=$! used=0 tries=$((tries + 1))
        while running $pid && [ "$used" -lt "$at" ]; do
            sleep 0.01
            used=$(sed 's/.*) //' "/proc/$pid/stat" | cut -d ' ' -f 12)
        done
        kill -TERM $pid
        wait $pid
        code=$?
    done
    echo "$1: exit $code, $(cat err)"
}
for ticks in 1 8; do
    ends $ticks report a --no-figures -o page
    ends $ticks compare a b
    ends $ticks analyze a --group head -o t.csv
    ends $ticks choose a --limit 'cra_min>=0.5' -o plan.json
done
ls
