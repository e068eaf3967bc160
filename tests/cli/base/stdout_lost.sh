# Results that cannot be written are a failure where stdout is closed or full. A reader that has
# enough is none: the command ends without a word, as by SIGPIPE. Its own failure is still told.
"$LACUNA" list metrics >&-; echo $?
"$LACUNA" list metrics >/dev/full; echo $?
"$LACUNA" list metrics >/dev/full --json; echo $?
to_no_one()
{
    rm -f closed
    {
        until [ -e closed ]; do :; done
        "$LACUNA" "$@"
        echo $? >status
    } | {
        exec <&-
        : >closed
    }
    cat status
}
to_no_one list metrics
to_no_one list metrics --json
awk 'BEGIN {
    for (i = 0; i < 4000; i++)
        printf "{\"trace\":\"xxh3:a\",\"model\":\"toy\",\"run\":0,\"step\":0,\"branch\":\"main\",\"timestep\":null,\"layer\":%d,\"head\":0,\"kv_head\":0,\"method\":\"dense\",\"params\":\"\",\"seed\":0,\"backend\":\"cpu\",\"precision\":\"f64\",\"permute\":\"none\",\"n_q\":64,\"n_k\":64,\"d\":8,\"causal\":true,\"status\":\"ok\",\"density_elem\":1,\"cra_min\":1}\n", i
}' >a.jsonl
[ "$("$LACUNA" analyze a.jsonl --table by-layer --format json | wc -c)" -gt 1000000 ] && echo long
to_no_one analyze a.jsonl --table by-layer --format json
to_no_one analyze a.jsonl --table by-layer -o -
"$LACUNA" analyze a.jsonl --table by-layer --format json >/dev/full; echo $?
"$LACUNA" analyze a.jsonl --table by-layer | head -1
sed 's/"cra_min":1/"cra_min":2/' a.jsonl >b.jsonl
to_no_one compare a.jsonl b.jsonl
to_no_one analyze no-such
