# A program in shell selects the masks: everything in one block, so the numbers are those of dense.
D=$ROOT/tests/data
"$LACUNA" import --safetensors "$D/code-lm-a.safetensors" --q layer5.q.heads0,7 --k layer5.k \
    --v layer5.v --causal --dtype bf16 --name code-lm --meta '{"layer": 5, "positions": "rope"}' -o t.h5 -q
cat >all.sh <<'EOF'
while read -r request; do
    printf '{"form":"lists","bq":1024,"bk":1024,"nnz":1}\n'
    printf '\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0'
done
EOF
"$LACUNA" replay t.h5 -j 1 -m 'exec:cmd=sh all.sh' -m dense -o a; echo "exit $?"
"$LACUNA" analyze a --columns density_elem,err_l1_rel,pairs_dropped --group method,params --format csv |
    cut -d, -f 1-8
echo 'while read -r request; do echo "{\"skip\":\"not today\"}"; done' >skip.sh
"$LACUNA" replay t.h5 -m 'exec:cmd=sh skip.sh' -o b; echo "exit $?"
sed 's/.*"reason":"\([^"]*\)".*/\1/' b/records.jsonl
# What a program writes before it answers is told, also when the answer is there at once.
echo 'while read -r request; do echo "no mask" >&2; echo "{\"skip\":\"not today\"}"; done' >says.sh
for i in 1 2 3 4 5 6 7 8; do
    "$LACUNA" replay t.h5 -m 'exec:cmd=sh says.sh' -o says$i 2>&1
done | grep -c 'exec: .*: no mask$'
echo 'read -r request; echo "loading" >&2; exit 9' >dies.sh
"$LACUNA" replay t.h5 -j 1 -m 'exec:cmd=sh dies.sh' -o c; echo "exit $?"
echo 'sleep 60' >hangs.sh
"$LACUNA" replay t.h5 -j 1 --heads 0 -m 'exec:cmd=sh hangs.sh:timeout=0.2' -o e; echo "exit $?"
sed 's/.*"reason":"\([^"]*\)".*/\1/' e/records.jsonl
"$LACUNA" replay t.h5 -m 'exec:cmd=./none' -o f; echo "exit $?"
# What it writes on standard error has an end in the log.
echo 'while read -r request; do yes "no end" | head -n 1000 >&2; echo "{\"skip\":\"not today\"}"; done' >floods.sh
"$LACUNA" replay t.h5 -j 1 --heads 0 -m 'exec:cmd=sh floods.sh' -o g 2>&1 | grep 'no end\|standard error' | sort | uniq -c | sed 's/^ *//'
