# Names of a stranger's files: quotes that gnuplot ends strings at, commands, markup, formats. What a
# terminal would obey is refused in names and escaped in paths.
record() {
    printf '{"trace":"xxh3:a","model":"%s","run":0,"step":0,"branch":"main","timestep":null,"layer":0,"head":0,"kv_head":0,"method":"dense","params":"%s","seed":0,"backend":"cpu","precision":"f64","permute":"none","n_q":64,"n_k":64,"d":8,"causal":true,"status":"ok","density_elem":1,"cra_min":1}\n' "$1" "$2"
}
mkdir quoted
record "'quoted' model" "x='a''b'''" >quoted/records.jsonl
record "'quoted' model" '%d%n{/Symbol x}`touch owned`$(touch owned)' >>quoted/records.jsonl
"$LACUNA" report quoted -o page -q && grep -c '<figure' page/index.html | grep -qv '^0$' && echo "drawn"
[ ! -e owned ] && [ ! -e page/figures/owned ] && echo "nothing was run"
record toy '<b>|=1' >html.jsonl
"$LACUNA" analyze html.jsonl --format md | grep -c '| &lt;b>\\|=1 *|'
record toy '=1+1' >formula.jsonl
"$LACUNA" analyze formula.jsonl --format csv | grep -c "^dense,\"'=1+1\","
for name in 'a\u001b[31m' 'a\u009b31m' 'a\u202eb'; do
    record "$name" '' >bad.jsonl
    "$LACUNA" analyze bad.jsonl
    echo "exit $?"
done
esc=$(printf 'a\033[31m')
cp quoted/records.jsonl "$esc.jsonl"
"$LACUNA" records check "$esc.jsonl"
"$LACUNA" analyze "$esc.h5"
"$LACUNA" plot bars "$esc.jsonl" -o "$esc.png"
echo "exit $?"
