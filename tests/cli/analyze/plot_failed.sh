# A figure that fails leaves the picture, script and data of the one before.
mkdir a
for tau in 0.9 0.95; do
    printf '{"trace":"xxh3:a","model":"toy","run":0,"step":0,"branch":"main","timestep":null,'
    printf '"layer":0,"head":0,"kv_head":0,"method":"spargeattn","params":"tau=%s",' $tau
    printf '"seed":0,"backend":"cpu","precision":"f64","permute":"none","n_q":64,"n_k":64,'
    printf '"d":8,"causal":true,"status":"ok","density_elem":%s,"cra_min":%s}\n' $tau $tau
done >a/records.jsonl
"$LACUNA" plot pareto a --metrics cra_min -o fig.svg
cksum fig.* >before
mkdir bin
printf '#!/bin/sh\nexit 7\n' >bin/gnuplot
chmod +x bin/gnuplot
PATH=$PWD/bin:$PATH "$LACUNA" plot pareto a --metrics density_elem -o fig.svg
echo "exit $?"
ls -d fig.*
cksum fig.gp fig.dat fig.svg fig.txt | sort >now
sort before | cmp - now && echo kept
PATH= "$LACUNA" plot pareto a --metrics cra_min -o fig.svg
sort before | cmp - now && echo kept
"$LACUNA" plot pareto a --metrics density_elem -o fig.svg
ls -d fig.*
