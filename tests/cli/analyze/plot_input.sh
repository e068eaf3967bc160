# A figure never writes over what it is drawn from.
printf '{"trace":"xxh3:a","model":"toy","run":0,"step":0,"branch":"main","timestep":null,"layer":0,"head":0,"kv_head":0,"method":"dense","params":"","seed":0,"backend":"cpu","precision":"f64","permute":"none","n_q":64,"n_k":64,"d":8,"causal":true,"status":"ok","density_elem":1,"cra_min":1}\n' >a.jsonl
for name in b.gp b.dat b.svg; do
    cp a.jsonl $name
    "$LACUNA" plot bars $name -o b.svg
    echo "exit $?"
    cmp a.jsonl $name && ls && rm $name
done
"$LACUNA" plot bars a.jsonl -o a.svg
ls
# A metric that no record has: the one that was meant.
"$LACUNA" plot bars a.jsonl --metrics density -o m.svg
"$LACUNA" plot pareto a.jsonl --metrics quality -o m.svg
echo "exit $?"
# A directory is no strip of frames.
"$LACUNA" plot frames . -o f.png
echo "exit $?"
