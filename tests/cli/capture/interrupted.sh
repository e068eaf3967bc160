# An interrupted capture leaves nothing behind and exits with 130.
. "$ROOT/tests/cli/running.sh"
awk 'BEGIN { for (i = 0; i < 30000; i++) print i % 4096 }' >ids.txt
"$LACUNA" capture --model "$ROOT/datasets/models/code-lm" --tokens-file ids.txt -o t.h5 --force &
pid=$!
while ! ls t.h5.*.part >/dev/null 2>&1 && running $pid; do sleep 0.05; done
kill -INT $pid
wait $pid
echo $?
ls
