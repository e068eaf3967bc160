# Methods that take their masks from elsewhere, and commands for videos, on a sample of query rows: refused by name.
M="$ROOT/datasets/models/code-lm"
cp "$ROOT/LICENSE" prompt.txt
"$LACUNA" capture -q --model "$M" --prompt prompt.txt --tokens 700 --layers 1 --heads 0 --maps 0 --no-nll --seed 5 -o full.h5
"$LACUNA" trace subset full.h5 --rows 2 --seed 5 -o s.h5 -q
"$LACUNA" replay -q full.h5 -m streaming:sink=4:window=100 -m streaming:sink=4:window=300 --dump-masks m.h5 -o full
"$LACUNA" choose -q full --limit 'cra_mean>=0' -o plan.json >/dev/null
"$LACUNA" replay -q s.h5 -m 'exec:cmd=true' -m 'mask:file=m.h5:pick=0' -m plan:file=plan.json -o s
sed -n 's/.*"method":"\([^"]*\)".*"status":"\([^"]*\)","reason":"\([^"]*\)".*/\1 \2: \3/p' s/records.jsonl
"$LACUNA" import -q --safetensors "$ROOT/tests/data/video-dit-a.safetensors" -o v.h5
"$LACUNA" trace subset v.h5 --rows 2 -o v2.h5; echo "exit $?"
"$LACUNA" capture -q --model "$ROOT/datasets/models/video-dit" --size 8x64x64 --steps 2 --rows 2 -o v3.h5; echo "exit $?"
