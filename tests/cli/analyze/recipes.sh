# What doc/records.md says of Parquet and SQLite works as it stands there, where pandas and sqlite3 are installed.
# Prints the numbers of rows of the three forms where they differ, and one line.
mkdir DIR
for h in 0 1 2; do
    printf '{"trace":"xxh3:a","model":"toy, \\"2\\"","run":0,"step":0,"branch":"main","timestep":null,"layer":0,"head":%d,' $h
    printf '"kv_head":0,"method":"%s","params":"%s","seed":0,"backend":"cpu","precision":"f64","permute":"none",' sale "$([ $h = 0 ] || echo tau=0.$h)"
    printf '"n_q":64,"n_k":64,"d":8,"causal":true,"status":"ok","density_elem":0.%d}\n' $((h + 1))
done >DIR/records.jsonl
PATH=$(dirname "$LACUNA"):$PATH
sed -n '/^    lacuna analyze DIR -t by-head -f csv/,/^$/s/^    //p' "$ROOT/doc/records.md" >recipe
wc -l <recipe
sh -c "$(sed -n 1p recipe)" || exit
if command -v sqlite3 >/dev/null; then
    sh -c "$(grep '^sqlite3' recipe)"
    sqlite3 heads.db 'select count(*), count(distinct params), round(sum(density_elem), 6) from heads' >got
    echo '3|3|0.6' | diff - got
fi
if python3 -c 'import pandas, pyarrow' 2>/dev/null; then
    sh -c "$(grep '^python3' recipe)"
    python3 -c 'import pandas; d = pandas.read_parquet("heads.parquet"); print(len(d), d.params.nunique(), round(d.density_elem.sum(), 6))' >got
    echo '3 3 0.6' | diff - got
fi
echo "the recipes hold"
