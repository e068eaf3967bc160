# Text from a file starts nothing and leads to no other file; a plan of one's own may, where the command line says so.
D=$ROOT/tests/data
"$LACUNA" import --safetensors "$D/code-lm-a.safetensors" --q layer5.q.heads0,7 --k layer5.k \
    --v layer5.v --causal --dtype bf16 --name code-lm --meta '{"layer": 5, "positions": "rope"}' -o t.h5 -q
cat >all.sh <<'EOF'
touch started
while read -r request; do
    printf '{"form":"lists","bq":1024,"bk":1024,"nnz":1}\n'
    printf '\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0'
done
EOF
# plan DEFAULT METHOD PARAMS
plan()
{
    printf '{"format":"lacuna-plan","version":1,"default":"%s","entries":[{"layer":5,"head":0,"method":"%s","params":"%s"}]}\n' "$@" >p.json
}
try()
{
    "$LACUNA" replay t.h5 -q -j 1 "$@"
    echo "exit $?"
}
"$LACUNA" replay t.h5 -q -m streaming:window=64 --dump-masks m.h5 -o m
plan 'exec:cmd=sh all.sh' streaming ''
try -m plan:file=p.json -o x
plan dense exec 'cmd=sh all.sh'
try -m plan:file=p.json -o x
plan dense mask file=m.h5
try -m plan:file=p.json -o x
plan dense sale calib=c.json
try -m plan:file=p.json -o x
plan dense streaming window=1..100000/lin10000
try -m plan:file=p.json -o x
[ -e started ] && echo started
# Of itself, in three spellings, trusted or not.
for of in plan:file=p.json plan@density_elem=0.3 plan; do
    plan $of streaming ''
    try -m plan:file=p.json:trust=1 -o x
done
# What some editors put in front of a file is named.
plan dense streaming '' && sed -i '1s/^/\xEF\xBB\xBF/' p.json
try -m plan:file=p.json -o x
# A number of a layer costs nothing.
plan dense streaming window=64 && sed -i 's/"layer":5/"layer":9000000000000000000/' p.json
try -m plan:file=p.json -o far
# Trusted: the program's numbers are those of dense, the file's those of its method.
plan 'exec:cmd=sh all.sh' mask file=m.h5
try -m plan:file=p.json:trust=1 -m streaming:window=64 -m dense:map=0 -o own
[ -e started ] && echo started
"$LACUNA" analyze own --group head,method --columns density_elem --format csv | cut -d, -f 1,2,6
# A calibration names no file, and what a search found is the searched parameter.
echo '{"method":"minference","params":{"table":"/etc/passwd"},"heads":[]}' >c.json
try -m minference:calib=c.json -o x
"$LACUNA" capture -q --model "$ROOT/datasets/models/code-lm" --prompt "$D/code-lm-a.txt" --tokens 128 --layers 0 --maps 0 -o s.h5
"$LACUNA" replay -q s.h5 -m streaming:sink=4@density_elem=0.3:per=model -o found
sed -i 's/found=window=[0-9]*/found=sink=0/; s/,"sum":.*/}/' found/records.jsonl
"$LACUNA" eval -q --model "$ROOT/datasets/models/code-lm" -m streaming:sink=4@density_elem=0.3:per=model --found found --task "$D/code-lm-a.txt" -n 128 -o f
echo "exit $?"
