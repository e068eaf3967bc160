# A signal while gnuplot runs, to lacuna alone or (as from a terminal) to both, is exit 130.
mkdir a bin
printf '{"trace":"xxh3:a","model":"toy","run":0,"step":0,"branch":"main","timestep":null,"layer":0,"head":0,"kv_head":0,"method":"dense","params":"","seed":0,"backend":"cpu","precision":"f64","permute":"none","n_q":64,"n_k":64,"d":8,"causal":true,"status":"ok","density_elem":1,"cra_min":1}\n' >a/records.jsonl
# gnuplot WHAT: the gnuplot that is found does this.
gnuplot_is()
{
    printf '#!/bin/sh\n%s\n' "$1" >bin/gnuplot
    chmod +x bin/gnuplot
}
try()
{
    PATH=$PWD/bin:$PATH timeout -s KILL 600 "$LACUNA" "$@"
    echo "exit $?"
}
gnuplot_is 'kill -INT $PPID; exec sleep 1000'
try plot bars a -o fig.png
try report a -o r1
gnuplot_is 'kill -TERM $PPID; exec sleep 1000'
try plot bars a -o fig.png
gnuplot_is 'kill -INT $PPID; kill -INT $$'
try plot bars a -o fig.png
try report a -o r2
ls
ls r1/figures r2/figures
