# Samples of query rows: captured, cut, exported and imported, replayed with intervals, refused where all rows are needed.
M="$ROOT/datasets/models/code-lm"
cp "$ROOT/LICENSE" prompt.txt
"$LACUNA" capture -q --model "$M" --prompt prompt.txt --tokens 1200 --layers 1 --heads 0-1 --maps 0 --no-nll --seed 5 -o full.h5
"$LACUNA" capture -q --model "$M" --prompt prompt.txt --tokens 1200 --layers 1 --heads 0-1 --no-nll --seed 5 --rows 4 -o s.h5
"$LACUNA" trace subset full.h5 --rows 4 --seed 5 -o cut.h5 -q
"$LACUNA" trace info s.h5 | sed -n 's/^run .*keys/queries and keys/p; /^rows/p'
for f in s cut; do "$LACUNA" trace info $f.h5 --json | grep content_id; done | uniq | wc -l
"$LACUNA" trace export s.h5 -o s.safetensors
"$LACUNA" import -q --safetensors s.safetensors -o again.h5
"$LACUNA" trace pack -q again.h5 -o packed.h5 >/dev/null
"$LACUNA" trace subset packed.h5 --heads 1 -o one.h5 -q
"$LACUNA" trace info one.h5 | sed -n '/^rows/p'
"$LACUNA" trace verify packed.h5
"$LACUNA" replay -q s.h5 -m dense -m streaming:sink=4:window=100 -m oracle -m hyperattention -m fg-attn -o run
"$LACUNA" replay -q full.h5 -m streaming:sink=4:window=100 -o all
grep -o '"method":"streaming.*"cra_min~"' run/records.jsonl | grep -c '"n_q":432'
"$LACUNA" analyze run --table sample --columns density_elem,cra_mean -q | sed -n '/^method/,/^oracle .*cra/p'
"$LACUNA" analyze run --table status -q | sed -n '/^method/,$p' | grep skip
"$LACUNA" analyze all --table sample; echo "exit $?"
"$LACUNA" replay -q s.h5 -m dense --dump-masks m.h5 -o run2; echo "exit $?"
"$LACUNA" trace map s.h5 -o map.h5; echo "exit $?"
"$LACUNA" trace subset s.h5 --rows 2 -o again2.h5; echo "exit $?"
"$LACUNA" trace subset full.h5 --rows 3 -o again2.h5; echo "exit $?"
"$LACUNA" trace subset full.h5 --rows 10 -o again2.h5; echo "exit $?"
"$LACUNA" calibrate spargeattn s.h5 -o c.json; echo "exit $?"
"$LACUNA" capture -q --model "$M" --prompt prompt.txt --tokens 1200 --rows 4 --maps 64 -o x.h5; echo "exit $?"
