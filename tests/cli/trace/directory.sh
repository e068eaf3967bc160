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
