# Where a result goes: a file that is replaced whole, the end of a link, or what is no regular file.
mkdir a
printf '%s\n' '{"trace":"xxh3:a","model":"toy","run":0,"step":0,"branch":"main","timestep":null,"layer":0,"head":0,"kv_head":0,"method":"dense","params":"","seed":0,"backend":"cpu","precision":"f64","permute":"none","n_q":64,"n_k":64,"d":8,"causal":true,"status":"ok","density_elem":1}' >a/records.jsonl
table() { "$LACUNA" analyze a --format csv --columns density_elem -q -o "$1"; }
table - | head -1
table /dev/stdout | head -1
{ echo before; table /dev/stdout; echo after; } >all; grep -c . all
ln -s real.csv link.csv
table link.csv && [ -L link.csv ] && [ -f real.csv ] && [ ! -L real.csv ] && echo "the link stays"
table /dev/null && [ -c /dev/null ] && echo "the device stays"
mkfifo pipe
head -1 pipe & table pipe; wait
[ -p pipe ] && echo "the pipe stays"
find . -name '*.part'
# An ending that no format has: text, and a word about it.
"$LACUNA" analyze a --columns density_elem -o table.xyz
