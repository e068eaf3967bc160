# Dumped masks are listed, and go out as tensors that the method mask reads back.
D=$ROOT/tests/data
"$LACUNA" import --safetensors "$D/code-lm-a.safetensors" --q layer5.q.heads0,7 --k layer5.k \
    --v layer5.v --causal --dtype bf16 --name code-lm --meta '{"layer": 5, "positions": "rope"}' -o t.h5 -q
"$LACUNA" replay t.h5 -j 1 -m streaming:window=64 -m spargeattn -m flexprefill:min_budget=128 \
    --dump-masks m.h5 -o a -q
"$LACUNA" mask list m.h5
"$LACUNA" mask list m.h5 --heads 1 --cells
"$LACUNA" mask list m.h5 --pick 2 --heads 0 --json
"$LACUNA" mask export m.h5 -o x.safetensors; echo "exit $?"
for format in dense blockmask bsr; do
    "$LACUNA" mask export m.h5 --method flexprefill --format $format -o $format.safetensors
    "$LACUNA" replay t.h5 -j 1 -m mask:file=$format.safetensors -o b-$format -q
done
for d in a b-dense b-blockmask b-bsr; do
    grep -E '"method":"(flexprefill|mask)"' $d/records.jsonl |
        sed 's/.*"head":\([0-9]*\),.*\("density_elem":[^,]*\).*\("cra_mean":[^,]*\).*\("err_l1_rel":[^,]*\).*/\1 \2 \3 \4/'
done | sed 's/\(0\.[0-9]\{8\}\)[0-9]*/\1/g' | sort | uniq -c | sed 's/:0\.[0-9]*/:0/g'
"$LACUNA" mask export m.h5 --pick 0 --unit 64x64 --format bsr -o bsr.safetensors; echo "exit $?"
"$LACUNA" mask export m.h5 --pick 0 --unit 64x64 --format bsr -o bsr.safetensors --force --json
"$LACUNA" mask export m.h5 --pick 0 --unit 64 -o y.safetensors; echo "exit $?"
"$LACUNA" mask export m.h5 --pick 0 --unit 8x8 --format dense -o y.safetensors; echo "exit $?"
"$LACUNA" mask export m.h5 --pick 9 -o y.safetensors; echo "exit $?"
"$LACUNA" mask list t.h5; echo "exit $?"
"$LACUNA" mask show m.h5; echo "exit $?"
ls ./*.safetensors
