# A plan is chosen on one prompt and replayed on another: every head runs its entry, and the table says what that gains.
for p in mask opt; do
    "$LACUNA" capture -q -m "$ROOT/datasets/models/code-lm" --prompt "$ROOT/core/$p.c" -n 512 --heads 0-3 --layers 0-1 --maps 0 -o $p.h5
    "$LACUNA" replay -q $p.h5 -m streaming:window=16,64,256 -m xattention:tau=0.5,0.9 -o $p
done
"$LACUNA" choose -q mask --limit 'err_l1_rel<=0.05' -o plan.json; echo "exit $?"
"$LACUNA" choose -q mask --limit 'err_l1_rel<=0.05' -o plan.json; echo "exit $?"
"$LACUNA" replay -q mask.h5 opt.h5 -m plan:file=plan.json -o plan; echo "exit $?"
# Same numbers as the setting of the entry.
key() { sed 's/.*"layer":\([0-9]*\),"head":\([0-9]*\).*/\1 \2/'; }
bad=0 n=0
while read -r line; do
    trace=$(echo "$line" | grep -o '"trace":"[^"]*"')
    params=$(echo "$line" | grep -o 'plan_params=[^;]*' | cut -d= -f2-)
    method=$(echo "$line" | grep -o 'plan_method=[^;]*' | cut -d= -f2)
    [ "$method" = dense ] && continue
    at=$(echo "$line" | key)
    for metric in density_elem err_l1_rel cra_p1; do
        mine=$(echo "$line" | grep -o "\"$metric\":[^,]*")
        theirs=$(cat mask/records.jsonl opt/records.jsonl | grep -F "$trace" | grep "\"layer\":${at% *},\"head\":${at#* }," | grep -F "\"method\":\"$method\",\"params\":\"$params\"" | grep -o "\"$metric\":[^,]*")
        [ "$mine" = "$theirs" ] || bad=$((bad + 1))
        n=$((n + 1))
    done
done <plan/records.jsonl
[ $n -gt 0 ] && echo "differs: $bad"
"$LACUNA" analyze mask opt plan --table plan --format csv | cut -d, -f2,3,8 | tr -d '\r' | sort | uniq -c | sed 's/^ *//'
"$LACUNA" replay -q mask.h5 -m plan:file=plan.json -o plan; echo "exit $?"
"$LACUNA" analyze mask --table plan; echo "exit $?"
# Refusals: no plan, a damaged one, another model, no file, a limit that is none.
"$LACUNA" replay -q mask.h5 -m plan -o x; echo "exit $?"
sed 's/"head": 1/"head": 9/' plan.json >edited.json
"$LACUNA" replay -q mask.h5 -m plan:file=edited.json -o x; echo "exit $?"
sed 's/"model": "[^"]*"/"model": "another"/; s/"sum": .*/"sum": null/' plan.json >other.json
"$LACUNA" replay -q mask.h5 -m plan:file=other.json -o x; echo "exit $?"
sed 's/"method": "[a-z]*"/"method": "fancy"/; s/"sum": .*/"sum": null/' plan.json >unknown.json
"$LACUNA" replay -q mask.h5 -m plan:file=unknown.json -o x; echo "exit $?"
"$LACUNA" choose -q mask --limit err_l1_rel=0.05 -o y.json; echo "exit $?"
"$LACUNA" choose -q mask -o y.json; echo "exit $?"
# Masks of the plan on another prompt come back through mask: they are the plan's, as blocks.
"$LACUNA" replay -q opt.h5 -m plan:file=plan.json --dump-masks p.h5 -o masks
"$LACUNA" mask export p.h5 --format blockmask -o blocks.safetensors; echo "exit $?"
"$LACUNA" replay -q opt.h5 -m plan:file=plan.json -m mask:file=blocks.safetensors -o back
"$LACUNA" analyze back --group method --columns density_tile@128x128 --format csv | cut -d, -f1,5 | tr -d '\r'
