# How far a replay is: done, in shards, stopped, and what is no replay's directory.
"$LACUNA" capture -q --model "$ROOT/datasets/models/code-lm" --prompt "$ROOT/core/mask.c" --tokens 64 --layers 0 -o t.h5
"$LACUNA" replay -q t.h5 -j 1 -m dense -m streaming:window=8 -m radial -o r
"$LACUNA" status r
for shard in 0/3 2/3; do "$LACUNA" replay -q t.h5 -m dense --shard $shard -o s; done
"$LACUNA" status s --json | grep '"manifest"\|"state"\|"cells"\|"ok"'
# A process that was killed left "running" behind. No process has this number.
mkdir k
printf '{"status":"running","pid":999999999,"start":"2025-01-01T00:00:00Z","host":{"name":"%s"},"cells":9}\n' \
    "$(uname -n)" >k/manifest.json
grep -m 1 '"dense"' r/records.jsonl >k/records.jsonl
grep -m 1 '"streaming"' r/records.jsonl >>k/records.jsonl
printf '{"status":"ok",' >>k/records.jsonl # the line that it was writing
"$LACUNA" status k
"$LACUNA" status t.h5; echo "exit $?"
"$LACUNA" status; echo "exit $?"
# Tables of a run that has not ended say so; brackets in a directory's name are no pattern.
"$LACUNA" analyze k --group method --columns density_elem --format csv | tail -1 | cut -d, -f1,2
cp -r r 'r[1]'
"$LACUNA" status 'r[1]'
"$LACUNA" analyze 'r[1]' --group method --columns density_elem --format csv | head -2 | cut -d, -f1,2
