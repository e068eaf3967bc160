# A directory of traces: commands that take several take all of it, the others its only one.
mkdir d one
for l in 0 1; do
    "$LACUNA" capture -q --model "$ROOT/datasets/models/code-lm" --prompt "$ROOT/LICENSE" --tokens 100 --layers $l --heads 0 --maps 0 --no-nll -o d/t$((l * 9 + 1)).h5
done
"$LACUNA" replay -q d -m dense:map=0 --dump-masks d/m.h5 -o run
grep -c '"method":"dense"' run/records.jsonl
"$LACUNA" trace verify d
"$LACUNA" trace info d | grep -c '^trace'
"$LACUNA" trace info d --json | grep -c content_id
"$LACUNA" trace join d -o one/joined.h5 -q | sed 's/, xxh3.*//'
"$LACUNA" trace info one | sed -n '/^calls/p'
"$LACUNA" trace export one -o e -q
"$LACUNA" trace export d -o e2; echo "exit $?"
mkdir empty
"$LACUNA" replay empty -m dense -o run2; echo "exit $?"
printf 'no trace' > d/broken.h5
"$LACUNA" trace verify d; echo "exit $?"
# Every command that takes traces takes the directory as one. Actions that write make a file of each.
rm d/broken.h5
"$LACUNA" trace pack d -o p -q | sed -n 's/: zstd.*//p'
"$LACUNA" trace subset d --tokens 50 -o s -q | sed 's/, xxh3.*//'
"$LACUNA" trace map s -o m --maps 8 --json -q | grep -c '"content_id"'
"$LACUNA" trace export d -o each -q; ls each/t1
"$LACUNA" trace verify p s m | grep -c '^ok'
"$LACUNA" trace subset d -o one.h5; echo "exit $?"
"$LACUNA" trace pack d d -o q; echo "exit $?"
"$LACUNA" trace subset d --dry-run -o none -q; ls none 2>/dev/null
"$LACUNA" calibrate spargeattn d --dry-run | sed 's/,.*//'
"$LACUNA" replay -q s -m streaming:sink=0:window=4,8 --dump-masks w.h5 -o w
"$LACUNA" overlap -q s w.h5 -o o; grep -o '"layer":[01]' o/records.jsonl | sort -u
"$LACUNA" plot heatmap m -o m.png; echo "exit $?"
"$LACUNA" plot heatmap one -o one.png -q --dry-run; echo "exit $?"
"$LACUNA" report w m -o report --dry-run
"$LACUNA" analyze s; echo "exit $?"
