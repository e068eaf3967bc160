# Figures of records of scope model: the data beside the pictures.
mkdir a b
line() # method params tokens depth sample acc density
{
    printf '{"scope":"model","weights":"xxh3:w","model":"toy",'
    printf '"task":"needle:domain=c:tokens=%s:depth=%s:sample=%s","setting":"",' "$3" "$4" "$5"
    printf '"method":"%s","params":"%s","seed":0,"backend":"cpu","precision":"f32",' "$1" "$2"
    printf '"n_q":64,"n_k":64,"causal":true,"status":"ok","needle_acc":%s,"density_elem":%s,' "$6" "$7"
    printf '"err_resid@layer=0":0.01,"err_resid@layer=1":0.04,"answer_nll":%s}\n' "$7"
}
replayed() # params error
{
    printf '{"trace":"xxh3:a","model":"toy","run":0,"step":0,"branch":"main","timestep":null,'
    printf '"layer":0,"head":0,"kv_head":0,"method":"sale","params":"%s","seed":0,' "$1"
    printf '"backend":"cpu","precision":"f64","permute":"none","n_q":64,"n_k":64,"d":8,'
    printf '"causal":true,"status":"ok","err_l2_rel":%s}\n' "$2"
}
for depth in 0 0.5; do
    for sample in 0 1; do
        line dense '' 2048 $depth $sample 1 1
        line dense '' 8192 $depth $sample 1 1
        line sale tau=0.1 2048 $depth $sample $sample 0.5
        line sale tau=0.1 8192 $depth $sample 0 0.25
    done
done >a/records.jsonl
for i in 1 2 3 4 5; do
    line sale tau=0.0$i 1000 1 0 1 0.$i >>a/records.jsonl
    replayed tau=0.0$i 0.0$i >>b/records.jsonl
done
plot()
{
    figure=$1
    shift
    "$LACUNA" plot "$figure" "$@" -q -o "$figure.png"
    echo "$figure: exit $?"
}
plot needle a --params 'tau=0.1' --size 400x300
cat needle.dat
sed -n "s/^set [xy]tics .*(/&/p" needle.gp
sed -n 's/^set palette.*(//p' needle.gp
plot needle a --params 'tau=0.1' --metrics answer_nll
sed -n 's/^set palette.*(//p' needle.gp
plot growth a --params 'tau=0.1'
cat growth.dat
plot curves a --method sale --x tau --metrics answer_nll
grep -o 'mean over [a-z0-9 ]*' curves.gp
plot inside a b --metrics err_l2_rel,answer_nll
cat inside.dat
grep -o "rho [-0-9.]*" inside.gp | head -1
"$LACUNA" analyze a b --table inside
plot layerhead a
plot inside b
plot growth a --metrics psnr
