# Equal budgets: a target in place of a parameter, what was found in the records, refusals.
"$LACUNA" capture -q -m "$ROOT/datasets/models/code-lm" --prompt "$ROOT/core/opt.c" -n 1024 --heads 2 --layers 1 --maps 0 -o t.h5
# Of the windows around the target, 137 keeps 0.249566 and 138 keeps 0.251256.
"$LACUNA" replay -q t.h5 -m streaming:sink=0@density_elem=0.25,0.3 -m 'streaming:sink=0@density_elem>=0.25' -o r; echo "exit $?"
grep -o '"params":"[^"]*"\|"budget_target":[0-9.]*\|"found[^"]*"\|"notes":"[^"]*"' r/records.jsonl
"$LACUNA" replay t.h5 -m streaming:sink=0@density_elem=0.25 -o r; echo "exit $?"
"$LACUNA" replay t.h5 -m streaming:sink=0@density_elem=0.2 --dry-run | sed 's/[0-9.]* [kM]B/N MB/g; s/threads, .*/threads, N s/; s/[0-9]* threads/N threads/'
# A dense head cannot be thinned out: the record says so.
"$LACUNA" replay -q t.h5 -m sale@density_elem=0.2 -o r; echo "exit $?"
grep -o '"notes":"[^"]*found[^"]*"' r/records.jsonl | tail -1
"$LACUNA" replay -q t.h5 -m longnet@density_elem=0.2 -o r; echo "exit $?"
"$LACUNA" replay -q t.h5 -m streaming:window=8@density_elem=0.2 -o r; echo "exit $?"
"$LACUNA" replay -q t.h5 -m streaming@density=0.2 -o r; echo "exit $?"
"$LACUNA" calibrate -q sale@density_elem=0.2 t.h5 -o c.json; echo "exit $?"
# What no setting can reach is no target, and a number that only a GPU's clock knows is not taken.
"$LACUNA" replay -q t.h5 -m streaming@density_elem=2 -o r; echo "exit $?"
"$LACUNA" replay -q t.h5 -m 'streaming@err_l1_rel<=-1' -o r; echo "exit $?"
"$LACUNA" replay -q t.h5 -m streaming --samples 5 -o r; echo "exit $?"
"$LACUNA" replay -q t.h5 -m streaming --l2 cold -o r; echo "exit $?"
# A sink of 128 keys keeps more than the target, whatever the window.
"$LACUNA" replay -q t.h5 -m streaming@density_elem=0.1 -m streaming:sink=0@density_elem=0.3 -o s; echo "exit $?"
