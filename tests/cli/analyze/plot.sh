mkdir a
for layer in 0 1; do
    for tau in 0.9 0.95; do
        printf '{"trace":"xxh3:a","model":"toy","run":0,"step":0,"branch":"main","timestep":null,'
        printf '"layer":%s,"head":0,"kv_head":0,"method":"spargeattn","params":"tau=%s",' $layer $tau
        printf '"seed":0,"backend":"cpu","precision":"f64","permute":"none","n_q":64,"n_k":64,'
        printf '"d":8,"causal":true,"status":"ok","density_elem":%s,"cra_min":%s}\n' $tau $tau
    done
done >a/records.jsonl
"$LACUNA" plot bars a --metrics density_elem --title "it's \`touch owned\`" -o fig.png --json
head -c 8 fig.png | od -An -tx1
ls
sed -n 's/^# made by: //p' fig.gp
cp fig.png first.png && rm fig.png && gnuplot fig.gp && cmp fig.png first.png && echo same
PATH= "$LACUNA" plot cdf a -o none.png
echo "exit $?"
ls none.*
# Bars of two methods of one colour differ by hatching; what is 0 on a logarithmic axis is said.
mkdir b
for method in dense oracle; do
    sed "s/\"spargeattn\",\"params\":\"tau=[0-9.]*\"/\"$method\",\"params\":\"\"/
        s/\"cra_min\"/\"err_l1_rel\":0,\"cra_min\"/" a/records.jsonl | sed -n '1p;3p'
done >b/records.jsonl
"$LACUNA" plot bars b -q -o bars.svg
grep -o "index [0-9] using 1:3 with boxes lc rgb '#000000' fs [a-z]*" bars.gp
"$LACUNA" plot pareto b -q --metrics err_l1_rel -o pareto.svg
grep -o 'What is 0.*' pareto.txt
# The faster of two settings with one error dominates.
sed 's/"density_elem":0.9,/"speedup":2,"err_l1_rel":0.1,/; s/"density_elem":0.95,/"speedup":1,"err_l1_rel":0.1,/' a/records.jsonl >s.jsonl
"$LACUNA" plot tradeoff s.jsonl -q -o s.svg && grep '^[12]' s.dat
