# Options and names that would change nothing are refused: a figure reads some options only, a metric
# that no record has is no column, and some tables have fixed rows.
try() { "$LACUNA" "$@"; echo "exit $?"; }
for given in 'pareto --x layer' 'pareto --rows 0-5' 'bars --mean' 'granularity --metrics cra_p1' \
    'layerhead --x tau' 'heatmap --method sale' 'heatmap --metrics cra_p1' 'mask --map stored' \
    'order --steps 1' 'curves --y tau' 'inside --layers 1' 'frames --mean' \
    'bars --metrics cra_p1,cra_p5'; do
    # shellcheck disable=SC2086
    try plot $given r -o x.png
done
try plot bars none --map auto --layers 1 -o x.png # an option at its default, and one that it reads
line() # layer
{
    printf '{"trace":"xxh3:a","model":"toy","run":0,"step":0,"branch":"main","timestep":null,'
    printf '"layer":%s,"head":0,"kv_head":0,"method":"sale","params":"","seed":0,' "$1"
    printf '"backend":"cpu","precision":"f64","permute":"none","n_q":64,"n_k":64,"d":8,"causal":true,'
    printf '"status":"ok","notes":"rows=4 groups","density_elem":0.5,"density_elem~se":0.1,'
    printf '"density_exec":0.6,"density_exec~se":0.5}\n'
}
mkdir r
line 0 >r/records.jsonl
line 1 >>r/records.jsonl
try analyze r --columns density_elem,cra_p9
try analyze r --columns 'density_*,nothing*'
try analyze r --columns density_exec --format csv | cut -d, -f1-6
try analyze r --table status --columns density_elem
try analyze r --table sample --group layer
try analyze r --table sample --columns cra_p9
try analyze r --table sample --columns density_exec # no density is below 0
try compare r r --metrics 'density_elem,cra_p9'
# Conditions that every record or none fulfils, whatever it holds.
for where in 'layer!=3..1' 'layer=1..' 'layer!=..2' 'density_elem>nan'; do
    try analyze r --where "$where"
done
try analyze r --where 'layer=0..1|7' --columns density_exec --format csv | cut -d, -f1-6
