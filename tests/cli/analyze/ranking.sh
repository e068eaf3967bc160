# Equal budgets in tables: targets as rows, parameters as keys, conditions, who wins.
cell() # method params head density error
{
    printf '{"trace":"xxh3:a","model":"toy","run":0,"step":0,"branch":"main","timestep":null,'
    printf '"layer":0,"head":%s,"kv_head":0,"method":"%s","params":"%s","seed":0,' "$3" "$1" "$2"
    printf '"backend":"cpu","precision":"f64","permute":"none","n_q":64,"n_k":64,"d":8,'
    printf '"causal":true,"status":"ok","density_elem":%s,"err_l1_rel":%s}\n' "$4" "$5"
}
mkdir r
for h in 0 1 2 3 4 5 6; do
    cell sale @density_elem=0.3 $h 0.3 0.0$((h + 1)) >>r/records.jsonl
    cell xattention @density_elem=0.3 $h 0.3 0.$((h + 2)) >>r/records.jsonl
    cell xattention tau=0.5 $h 0.1 0.4 >>r/records.jsonl
    cell xattention tau=0.8 $h 0.4 0.1 >>r/records.jsonl
done
"$LACUNA" analyze r --table ranking
"$LACUNA" analyze r --by err_l1_rel; echo "exit $?"
"$LACUNA" analyze r --table ranking --at density_elem=0.2 --where 'tau>0'
"$LACUNA" analyze r --where 'method=xattention,tau=0.5..0.8' --group tau,target --columns density_elem --format csv | cut -d, -f1-3 | tr -d '\r'
"$LACUNA" analyze r --group method --pivot target --columns density_elem --format csv | tr -d '\r'
"$LACUNA" analyze r --where 'tau=7'; echo "exit $?"
"$LACUNA" analyze r --where 'taw=7'; echo "exit $?"
"$LACUNA" analyze r --table ranking --where 'tau=0.5|0.8'; echo "exit $?"
"$LACUNA" analyze r --table ranking --group layer; echo "exit $?"
"$LACUNA" compare r r --where method=sale
