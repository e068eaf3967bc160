# Two causal windows of 4 and 8 over 16 tokens keep 58 and 100 pairs, and share 58 of them.
"$LACUNA" capture -q -m "$ROOT/datasets/models/code-lm" --prompt "$ROOT/core/version.c" -n 16 --heads 2 --layers 1 --maps 0 -o t.h5
"$LACUNA" replay -q t.h5 -m streaming:sink=0:window=4,8 -m dense -o r --dump-masks m.h5
"$LACUNA" overlap -q t.h5 m.h5 -o o; echo "exit $?"
"$LACUNA" overlap -q t.h5 m.h5 -o o; echo "exit $?"
grep -o '"params":"[^"]*"\|"overlap_iou":[0-9.]*\|"overlap_a_in_b":1\b\|"overlap_only_b":0\b' o/records.jsonl
# What dense alone keeps is what the window lacks.
mean() { grep -o "\"$1\":[0-9.]*" | cut -d: -f2; }
only=$(grep 'a=dense:b=.*window=8' o/records.jsonl | mean overlap_only_a)
kept=$(grep 'window=8"' r/records.jsonl | mean cra_mean)
awk "BEGIN { d = $only + $kept - 1; print (d < 1e-9 && d > -1e-9) ? \"same mass\" : d }"
"$LACUNA" analyze o --group a --pivot b --columns overlap_iou --format csv | cut -d, -f1,2,8 | tr -d '\r'
"$LACUNA" overlap t.h5 -o x; echo "exit $?"
"$LACUNA" replay -q t.h5 -m dense -o one --dump-masks one.h5
"$LACUNA" overlap t.h5 one.h5 -o x; echo "exit $?"
"$LACUNA" overlap t.h5 m.h5 --dry-run
