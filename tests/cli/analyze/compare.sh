mkdir a b
line() # layer density
{
    printf '{"trace":"xxh3:a","model":"toy","run":0,"step":0,"branch":"main","timestep":null,'
    printf '"layer":%s,"head":0,"kv_head":0,"method":"sale","params":"","seed":0,' "$1"
    printf '"backend":"cpu","precision":"f64","permute":"none","n_q":64,"n_k":64,"d":8,'
    printf '"causal":true,"status":"ok","density_elem":%s,"host_attend_ns":%s}\n' "$2" "$3"
}
{ line 0 0.5 1; line 1 0.25 2; } >a/records.jsonl
{ line 0 0.5 3; line 1 0.2500001 4; line 2 1 5; } >b/records.jsonl
"$LACUNA" compare a a; echo "exit $?"
"$LACUNA" compare a b; echo "exit $?"
"$LACUNA" compare a b --rtol 1e-6 --most 1; echo "exit $?"
