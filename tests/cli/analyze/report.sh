mkdir a
printf '{"trace":"xxh3:a","model":"toy","run":0,"step":0,"branch":"main","timestep":null,"layer":0,"head":0,"kv_head":0,"method":"dense","params":"","seed":0,"backend":"cpu","precision":"f64","permute":"none","n_q":64,"n_k":64,"d":8,"causal":true,"status":"ok","density_elem":1,"cra_min":1}\n' >a/records.jsonl
"$LACUNA" report a -o r --no-figures --title 'One <head>' --json
ls r r/tables
grep -c '<title>One &lt;head&gt;</title>' r/index.html
"$LACUNA" report a --masks none.h5 -o q; echo "exit $?"
[ ! -e q ] && echo "nothing was made"
