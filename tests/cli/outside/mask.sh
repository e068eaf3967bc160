# The mask of a dump gives the numbers of the method that wrote it; files that do not fit say why.
D=$ROOT/tests/data
"$LACUNA" import --safetensors "$D/code-lm-a.safetensors" --q layer5.q.heads0,7 --k layer5.k \
    --v layer5.v --causal --dtype bf16 --name code-lm --meta '{"layer": 5, "positions": "rope"}' -o t.h5 -q
numbers() # DIR METHOD WORD-OF-THE-PARAMETERS
{
    grep "\"method\":\"$2\",\"params\":\"[^\"]*$3" "$1/records.jsonl" |
        sed 's/.*"head":\([0-9]*\),.*"status":"ok",/\1 /; s/"cost_select[a-z_]*":[^,]*,//g; s/"host.*//'
}
"$LACUNA" replay t.h5 -j 1 -m streaming:window=64 -m sampleattention --dump-masks m.h5 -o a -q
"$LACUNA" replay t.h5 -j 1 -m mask:file=m.h5 -o b; echo "exit $?"
"$LACUNA" replay t.h5 -j 1 -m mask:file=m.h5:pick=0,1 -o b; echo "exit $?"
numbers a streaming window >want
numbers b mask pick=0 >have
wc -l <want
cmp want have && echo same
"$LACUNA" replay t.h5 -m mask:file=m.h5:pick=2 -o c; echo "exit $?"
"$LACUNA" replay t.h5 -m "mask:file=$D/masks/five.npy" -o c 2>err; echo "exit $?"
sed "s|/.*/masks|DATA/masks|" err
"$LACUNA" replay t.h5 -m mask:file=t.h5 -o c; echo "exit $?"
"$LACUNA" replay t.h5 -m mask:file=none.npz -o c; echo "exit $?"
cp m.h5 n.h5 # another content, another identity: nothing counts as done
"$LACUNA" replay t.h5 -m dense --dump-masks n.h5 -o d -q --force
"$LACUNA" replay t.h5 -j 1 -m mask:file=n.h5 -o b; echo "exit $?"
# Masks of the 2 kv heads are none of the 8 query heads, also where only the first two are replayed.
"$LACUNA" capture -q --model "$ROOT/datasets/models/code-lm" --prompt "$ROOT/core/mask.c" --tokens 64 --layers 0 -o u.h5
zeros() # HEADS
{
    printf '\223NUMPY\001\000\166\000'
    printf '%-117s\n' "{'descr': '|b1', 'fortran_order': False, 'shape': ($1, 64, 64), }"
    head -c $(($1 * 4096)) /dev/zero
}
zeros 2 >kv.npy
"$LACUNA" replay u.h5 -j 1 -m mask:file=kv.npy --heads 0-1 -o f; echo "exit $?"
# Masks of the first heads alone.
zeros 4 >four.npy
"$LACUNA" replay u.h5 -j 1 -m mask:file=four.npy --heads 3-4 -o g; echo "exit $?"
sed -n 's/.*"reason":"\([^"]*\)".*/\1/p' g/records.jsonl
"$LACUNA" replay u.h5 -j 1 -m mask:file=m.h5:pick=0:match=order -o h; echo "exit $?"
