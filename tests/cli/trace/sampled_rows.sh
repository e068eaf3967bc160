# Maps are of all rows: of a sample of them a figure is refused, and a report does without.
"$LACUNA" capture -q -m "$ROOT/datasets/models/code-lm" --prompt "$ROOT/core/shard.c" -n 600 --rows 2 --layers 1 --heads 0-3 -o t.h5
"$LACUNA" replay -q t.h5 -m dense -m streaming:sink=4:window=64 -o r
"$LACUNA" plot heatmap t.h5 -o h.png
echo "exit $?"
"$LACUNA" report -q r -o page
echo "exit $?"
ls page
