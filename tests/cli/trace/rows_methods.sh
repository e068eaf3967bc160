# Methods that take their masks from elsewhere, and commands for videos, on a sample of query rows: refused by name; a plan goes by
# its entry's method.
M="$ROOT/datasets/models/code-lm"
cp "$ROOT/LICENSE" prompt.txt
"$LACUNA" capture -q --model "$M" --prompt prompt.txt --tokens 700 --layers 1 --heads 0 --maps 0 --no-nll --seed 5 -o full.h5
"$LACUNA" trace subset full.h5 --rows 2 --seed 5 -o s.h5 -q
"$LACUNA" replay -q full.h5 -m streaming:sink=4:window=100 -m streaming:sink=4:window=300 --dump-masks m.h5 -o full
"$LACUNA" choose -q full --limit 'cra_mean>=0' -o plan.json >/dev/null
"$LACUNA" replay -q s.h5 -m 'exec:cmd=true' -m 'mask:file=m.h5:pick=0' -m plan:file=plan.json -o s
"$LACUNA" replay -q full.h5 -m hyperattention:min_len=128:block=64:samples=32 -o hyper
"$LACUNA" choose -q hyper --limit 'cra_mean>=0' -o other.json >/dev/null
"$LACUNA" replay -q s.h5 -m plan:file=other.json -m streaming:sink=4:window=100 -o s2
sed -n 's/.*"method":"\([^"]*\)".*"status":"\([^"]*\)","reason":"\([^"]*\)".*/\1 \2: \3/p' s/records.jsonl s2/records.jsonl
cat s/records.jsonl s2/records.jsonl | sed -n 's/.*"method":"\([^"]*\)".*"status":"ok","density_elem":\([^,]*\),.*/\1 ok: \2/p'
"$LACUNA" import -q --safetensors "$ROOT/tests/data/code-lm-a.safetensors" --q layer5.q.heads0,7 --k layer5.k --v layer5.v --causal --window 64 \
    --layer 1 --name code-lm -o w.h5
"$LACUNA" replay -q w.h5 --heads 0 -m plan:file=plan.json -m plan:file=other.json -o w
sed -n 's/.*"method":"\([^"]*\)".*"status":"\([^"]*\)","reason":"\([^"]*\)".*/\1 \2: \3/p' w/records.jsonl
"$LACUNA" import -q --safetensors "$ROOT/tests/data/video-dit-a.safetensors" -o v.h5
"$LACUNA" trace subset v.h5 --rows 2 -o v2.h5; echo "exit $?"
"$LACUNA" capture -q --model "$ROOT/datasets/models/video-dit" --size 8x64x64 --steps 2 --rows 2 -o v3.h5; echo "exit $?"
