# Records of whole calls beside those of their heads: in tables, sums, conditions, comparison, status, repair, a figure.
cell() { # LAYER HEAD METHOD MEMBERS SCOPE
    printf '{%s"trace":"xxh3:a","model":"toy","run":0,"step":0,"branch":"main","timestep":null,"layer":%s,' "$5" "$1"
    printf '"head":%s,"method":"%s","params":"","seed":0,"backend":"cuda","precision":"f64","permute":"none",' "$2" "$3"
    printf '"n_q":1024,"n_k":1024,"d":64,"causal":true,"status":"ok",%s}\n' "$4"
}
of_head() { # LAYER HEAD METHOD DENSITY
    cell "$1" "$2" "$3" "\"kv_head\":0,\"density_elem\":$4,\"cra_p1\":0.9$2,\"err_l1_rel\":0.0$2" ''
}
of_call() { # LAYER METHOD ATTEND SPEEDUP HEADS
    cell "$1" -1 "$2" "\"heads\":\"$5\",\"time_attend_ns\":$3,\"time_total_ns\":$3,\"time_dense_ns\":4000000,\"speedup\":$4,\"samples\":20,\"call_heads\":4" \
        '"scope":"call",'
}
mkdir run parts copies only
for layer in 0 1; do
    for h in 1 2 3 4; do
        of_head $layer $h dense 1
        of_head $layer $h sale 0.2$h
    done
    of_call $layer dense 4000000 1 ''
    of_call $layer sale 2000000 2.$layer ''
done >run/records.jsonl
"$LACUNA" analyze run
"$LACUNA" analyze run --table time
"$LACUNA" analyze run --table by-layer --columns density_elem,speedup -f csv | cut -d, -f1-9,12-14
"$LACUNA" analyze run --columns speedup --pivot layer
"$LACUNA" analyze run --table status
echo "-- a head has no time of its own, a call no density"
"$LACUNA" analyze run --table by-head --columns density_elem,speedup | tail -n 5
"$LACUNA" analyze run --where head=2 | tail -n 3
"$LACUNA" analyze run --where scope=call --group method,layer --columns speedup
"$LACUNA" analyze run --where scope=call --columns density_elem || echo "exit $?"
"$LACUNA" choose run --limit 'err_l1_rel<=0.5' --cost time_total -o plan.json || echo "exit $?"
echo "-- parts of calls are not calls"
{ grep '"kv_head"' run/records.jsonl && of_call 0 sale 1000000 4 0-1 && of_call 0 sale 1000000 4 2-3; } >parts/records.jsonl
"$LACUNA" analyze parts --columns density_elem,speedup | tail -n 5
"$LACUNA" analyze parts --table time | head -n 8
echo "-- nor are heads through copies"
{ cat run/records.jsonl && of_head 0 7 sale '0.3,"time_attend_ns":1000,"time_dense_ns":9000,"speedup":9'; } >copies/records.jsonl
"$LACUNA" analyze copies --columns density_elem,speedup | tail -n 5
"$LACUNA" analyze copies --where scope=head --columns speedup | head -n 6
echo "-- compared, checked, drawn"
"$LACUNA" compare run run
sed 's/"call_heads":4/"call_heads":5/' run/records.jsonl >only/records.jsonl
"$LACUNA" compare run only --most 1 || echo "exit $?"
"$LACUNA" records check run
"$LACUNA" plot phases run -o phases.svg && grep -c 'Mean time of a call' phases.svg phases.gp 2>/dev/null | sort
