# Methods that take their masks from elsewhere, on a sample of query rows: a mask from a file is that of the method that made it, a
# program must know of samples, a plan goes by its entry's method. Commands for videos refuse a sample by name.
M="$ROOT/datasets/models/code-lm"
cp "$ROOT/LICENSE" prompt.txt
"$LACUNA" capture -q --model "$M" --prompt prompt.txt --tokens 700 --layers 1 --heads 0 --maps 0 --no-nll --seed 5 -o full.h5
"$LACUNA" trace subset full.h5 --rows 2 --seed 5 -o s.h5 -q
"$LACUNA" replay -q full.h5 -m streaming:sink=4:window=100 -m streaming:sink=4:window=300 --dump-masks m.h5 -o full
"$LACUNA" choose -q full --limit 'cra_mean>=0' -o plan.json >/dev/null
"$LACUNA" replay -q s.h5 -m 'exec:cmd=true' -m plan:file=plan.json -o s
"$LACUNA" replay -q full.h5 -m hyperattention:min_len=128:block=64:samples=32 -o hyper
"$LACUNA" choose -q hyper --limit 'cra_mean>=0' -o other.json >/dev/null
"$LACUNA" replay -q s.h5 -m plan:file=other.json -m streaming:sink=4:window=100 -o s2
sed -n 's/.*"method":"\([^"]*\)".*"status":"\([^"]*\)","reason":"\([^"]*\)".*/\1 \2: \3/p' s/records.jsonl s2/records.jsonl
"$LACUNA" replay -q s.h5 -m streaming:sink=4:window=100 -o s3
"$LACUNA" replay -q s.h5 -m mask:file=m.h5:pick=0 -o s4; echo "exit $?"
"$LACUNA" replay -q s.h5 -m mask:file=m.h5:pick=0:match=order -o s4
metrics() { grep -o '"pairs_kept":[^,]*\|"pairs_allowed":[^,]*\|"cra_mean":[^,]*\|"err_l1_rel":[^,]*' $1/records.jsonl; }
metrics s3 >3; metrics s4 >4; wc -l <3; cmp 3 4 && echo "the mask of the dump is that of streaming"
# A program in awk that keeps the first block: it says which rows it was asked for on its standard error.
cat >first.sh <<'END'
while read -r line; do
    echo "$line" | sed 's/.*"nq":\([0-9]*\).*"rows":\(.*\),"seed".*/asked for \2 of \1/' >&2
    echo '{"form":"lists","bq":128,"bk":128,"nnz":6}'
    printf '\000\000\000\000\000\000\000\000'
    for i in 1 2 3 4 5 6; do printf "\\00$i\\000\\000\\000\\000\\000\\000\\000"; done
    for i in 1 2 3 4 5 6; do printf '\000\000\000\000'; done
done
END
"$LACUNA" replay s.h5 -m 'exec:cmd=sh first.sh:rows=1' -m streaming:sink=128:window=1 -o s5 2>&1 | grep -o 'asked.*'
sed -n 's/.*"method":"\([^"]*\)".*"status":"\([^"]*\)".*"pairs_kept":\([^,]*\),.*/\1 \2 \3/p' s5/records.jsonl
cat s/records.jsonl s2/records.jsonl | sed -n 's/.*"method":"\([^"]*\)".*"status":"ok","density_elem":\([^,]*\),.*/\1 ok: \2/p'
"$LACUNA" import -q --safetensors "$ROOT/tests/data/code-lm-a.safetensors" --q layer5.q.heads0,7 --k layer5.k --v layer5.v --causal \
    --meta '{"window_left": 63, "layer": 1}' --name code-lm -o w.h5
"$LACUNA" replay -q w.h5 --heads 0 -m plan:file=plan.json -m plan:file=other.json -o w
sed -n 's/.*"method":"\([^"]*\)".*"status":"\([^"]*\)","reason":"\([^"]*\)".*/\1 \2: \3/p' w/records.jsonl
"$LACUNA" import -q --safetensors "$ROOT/tests/data/video-dit-a.safetensors" -o v.h5
"$LACUNA" trace subset v.h5 --rows 2 -o v2.h5; echo "exit $?"
"$LACUNA" capture -q --model "$ROOT/datasets/models/video-dit" --size 8x64x64 --steps 2 --rows 2 -o v3.h5; echo "exit $?"
