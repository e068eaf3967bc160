mkdir a
line() # method params layer density status
{
    printf '{"trace":"xxh3:a","model":"toy","run":0,"step":0,"branch":"main","timestep":null,'
    printf '"layer":%s,"head":0,"kv_head":0,"method":"%s","params":"%s","seed":0,' "$3" "$1" "$2"
    printf '"backend":"cpu","precision":"f64","permute":"none","n_q":64,"n_k":64,"d":8,'
    printf '"causal":true,"status":"%s"%s}\n' "$5" "$4"
}
line dense '' 0 ',"density_elem":1,"cra_min":1' ok >a/records.jsonl
line sale tau=0.02 0 ',"density_elem":0.25,"cra_min":0.5' ok >>a/records.jsonl
line sale tau=0.02 1 ',"density_elem":0.75,"cra_min":0.9' ok >>a/records.jsonl
line radial '' 0 ',"reason":"bidirectional only"' skip >>a/records.jsonl
"$LACUNA" analyze a
"$LACUNA" analyze a --group method --pivot layer --columns density_elem
"$LACUNA" analyze a --table by-layer --columns cra_min --format csv | tr -d '\r'
"$LACUNA" analyze a --table status -o status.tex && cat status.tex
"$LACUNA" analyze a --json | head -3
"$LACUNA" analyze a --dry-run 2>&1
